//! What the library logs, line by line.

use std::fmt::Write;
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the lines of information and above that were logged under it.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push((*event.metadata().level(), text.0));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// The lines since the last call of this that contain a text.
    pub fn take(&self, part: &str) -> Vec<String> {
        let all = std::mem::take(&mut *self.0.lock());
        let lines = all.into_iter().map(|(_, line)| line);
        lines.filter(|line| line.contains(part)).collect()
    }

    /// So many warnings and errors since the last call of the others.
    pub fn count_warnings(&self) -> usize {
        let all = self.0.lock();
        all.iter()
            .filter(|(level, _)| *level <= Level::WARN)
            .count()
    }

    /// The warnings and errors since the last call of this.
    pub fn take_warnings(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.0.lock());
        let grave = all.into_iter().filter(|(level, _)| *level <= Level::WARN);
        grave.map(|(_, line)| line).collect()
    }
}
