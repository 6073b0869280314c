//! From `tracing` to the one callback that the host may set.
//!
//! There is no global subscriber: ours is installed for the length of a call, and for the life of
//! the threads that such a call starts. It holds no state of its own, so that it always speaks to
//! the callback set last, whenever a thread was started.

use super::message;
use crate::catch::call_host;
use crate::error::{Result, bail};
use parking_lot::{Mutex, RwLock};
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, Ordering};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber, dispatcher};

/// Something failed that the operator should know.
pub const KVB_LOG_ERROR: i32 = 1;
/// Something was degraded or ignored.
pub const KVB_LOG_WARN: i32 = 2;
/// What was opened, registered, shut down; statistics lines.
pub const KVB_LOG_INFO: i32 = 3;
/// Decisions per pass.
pub const KVB_LOG_DEBUG: i32 = 4;
/// Decisions per block.
pub const KVB_LOG_TRACE: i32 = 5;

/// Receives one log line: `level` is one of `KVB_LOG_*`, `target` the part of the library that
/// speaks. Both texts are UTF-8, not terminated, and valid during the call only.
///
/// It is called on whatever thread the line arises, also on threads of the library, by several at
/// once. It must return soon and must not call `kvb_set_log`. An exception that it throws ends in
/// the library: that line is lost and the call goes on. `kvb_last_error` has the exception's text
/// on the thread that logged, and a warning behind the next line that gets through has it, too.
pub type kvb_log_callback = Option<
    unsafe extern "C-unwind" fn(
        context: *mut c_void,
        level: i32,
        target: *const c_char,
        target_size: usize,
        message: *const c_char,
        message_size: usize,
    ),
>;

type Callback =
    unsafe extern "C-unwind" fn(*mut c_void, i32, *const c_char, usize, *const c_char, usize);

struct Sink {
    callback: Callback,
    context: *mut c_void,
}

// SAFETY: the context is never dereferenced here; that the callback may be called with it on any
// thread, by several at once, is what `kvb_set_log` asks of the host.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

static SINK: RwLock<Option<Sink>> = RwLock::new(None);
/// The highest level the callback wants; 0 without a callback.
static LEVEL: AtomicI32 = AtomicI32::new(0);
/// Lines that a callback threw at and that no later line has told of, and what the last one threw.
static THROWN: Mutex<(u64, String)> = Mutex::new((0, String::new()));
static DISPATCH: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Forward));

thread_local! {
    /// Set while this thread is in the callback: lines that arise there are dropped.
    static SPEAKING: Cell<bool> = const { Cell::new(false) };
    static LINE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets or removes the callback. When this returns, the one before is not running and is never
/// called again. `max_level` was checked.
pub(super) fn set(callback: Option<Callback>, context: *mut c_void, max_level: i32) -> Result<()> {
    if is_speaking() {
        bail!(Busy, "the log callback must not set the log callback");
    }
    let mut sink = SINK.write();
    LEVEL.store(
        if callback.is_some() { max_level } else { 0 },
        Ordering::Relaxed,
    );
    *sink = callback.map(|callback| Sink { callback, context });
    drop(sink);
    LazyLock::force(&DISPATCH);
    // Making a dispatch is what has `tracing` ask all of them for their level again.
    drop(Dispatch::new(Forward));
    Ok(())
}

/// Whether this thread is inside the host's callback.
pub(super) fn is_speaking() -> bool {
    SPEAKING.try_with(Cell::get).unwrap_or(false)
}

/// Runs `body` as if it were the host's callback.
#[cfg(test)]
pub(super) fn while_speaking<R>(body: impl FnOnce() -> R) -> R {
    SPEAKING.with(|speaking| speaking.set(true));
    let end = body();
    SPEAKING.with(|speaking| speaking.set(false));
    end
}

/// Runs `body` under our subscriber when somebody listens.
pub(super) fn scope<R>(body: impl FnOnce() -> R) -> R {
    if LEVEL.load(Ordering::Relaxed) == 0 {
        body()
    } else {
        always(body)
    }
}

/// Runs `body` under our subscriber in any case: for bodies that start threads, which inherit it.
pub(super) fn always<R>(body: impl FnOnce() -> R) -> R {
    dispatcher::with_default(&DISPATCH, body)
}

/// Whether the calling thread runs under our subscriber.
pub(super) fn is_ours() -> bool {
    dispatcher::get_default(|dispatch| dispatch.is::<Forward>())
}

fn number(level: Level) -> i32 {
    match level {
        Level::ERROR => KVB_LOG_ERROR,
        Level::WARN => KVB_LOG_WARN,
        Level::INFO => KVB_LOG_INFO,
        Level::DEBUG => KVB_LOG_DEBUG,
        _ => KVB_LOG_TRACE,
    }
}

/// The subscriber. Spans are not reported.
struct Forward;

impl Subscriber for Forward {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may change at any time.
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEVEL.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            KVB_LOG_ERROR => LevelFilter::ERROR,
            KVB_LOG_WARN => LevelFilter::WARN,
            KVB_LOG_INFO => LevelFilter::INFO,
            KVB_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let _ = LINE.try_with(|line| {
            // A line that arises while one is made or delivered on this thread is dropped.
            if let Ok(mut line) = line.try_borrow_mut() {
                line.clear();
                event.record(&mut Text(&mut line));
                deliver(
                    number(*event.metadata().level()),
                    event.metadata().target(),
                    &line,
                );
            }
        });
    }
}

fn deliver(level: i32, target: &str, line: &str) {
    let sink = SINK.read();
    let Some(sink) = sink.as_ref() else { return };
    let _speaking = Speaking::begin();
    if !sink.hear(level, target, line) || LEVEL.load(Ordering::Relaxed) < KVB_LOG_WARN {
        return;
    }
    let (count, text) = std::mem::take(&mut *THROWN.lock());
    if count > 0 {
        let line = format!("the log callback threw, so that {count} lines are lost; last: {text}");
        if !sink.hear(KVB_LOG_WARN, module_path!(), &line) {
            THROWN.lock().0 += count;
        }
    }
}

impl Sink {
    /// Whether the callback took the line. What it throws is kept for a line that it takes.
    fn hear(&self, level: i32, target: &str, line: &str) -> bool {
        let heard = call_host(|| {
            // SAFETY: the host promised a callback that may be called so until it is replaced, and
            // replacing waits for the lock that is held by the caller.
            unsafe {
                (self.callback)(
                    self.context,
                    level,
                    target.as_ptr().cast(),
                    target.len(),
                    line.as_ptr().cast(),
                    line.len(),
                );
            }
        });
        let Err(text) = heard else { return true };
        message::set(format_args!("the log callback threw: {text}"));
        let mut thrown = THROWN.lock();
        thrown.0 += 1;
        thrown.1 = text;
        false
    }
}

/// This thread is in the callback, also while that panics.
struct Speaking;

impl Speaking {
    fn begin() -> Self {
        let _ = SPEAKING.try_with(|speaking| speaking.set(true));
        Self
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        let _ = SPEAKING.try_with(|speaking| speaking.set(false));
    }
}

/// Writes an event as `message name=value name=value`.
struct Text<'a>(&'a mut String);

impl Text<'_> {
    fn field(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        // Writing to a string cannot fail; a broken Debug only cuts the line short.
        let _ = if field.name() == "message" {
            // The message stands first, whatever order the fields come in.
            let fields = std::mem::take(self.0);
            let _ = self.0.write_fmt(value);
            if !fields.is_empty() {
                self.0.push(' ');
            }
            self.0.write_str(&fields)
        } else {
            if !self.0.is_empty() {
                self.0.push(' ');
            }
            write!(self.0, "{}={value}", field.name())
        };
    }
}

impl Visit for Text<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.field(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    struct Heard(Mutex<Vec<(i32, String)>>);

    unsafe extern "C-unwind" fn hear(
        context: *mut c_void,
        level: i32,
        _: *const c_char,
        _: usize,
        message: *const c_char,
        message_size: usize,
    ) {
        // A line from inside the callback must neither deadlock nor arrive.
        tracing::error!("echo");
        assert!(set(None, std::ptr::null_mut(), 0).is_err());
        // SAFETY: the context is the test's, the text is valid during the call.
        let (heard, text) = unsafe {
            (
                &*context.cast::<Heard>(),
                std::slice::from_raw_parts(message.cast::<u8>(), message_size),
            )
        };
        let text = String::from_utf8_lossy(text).into_owned();
        heard.0.lock().push((level, text));
    }

    #[test]
    fn a_panic_of_the_callback_leaves_the_thread_able_to_call() {
        unsafe extern "C-unwind" fn fail(
            _: *mut c_void,
            _: i32,
            _: *const c_char,
            _: usize,
            _: *const c_char,
            _: usize,
        ) {
            panic!("seven");
        }
        let sink = Sink {
            callback: fail,
            context: std::ptr::null_mut(),
        };
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _speaking = Speaking::begin();
            sink.hear(KVB_LOG_INFO, "t", "line")
        }));
        assert!(end.is_err());
        assert!(!is_speaking());
    }

    // One test, since the callback is the process's.
    #[test]
    fn lines_reach_the_callback_while_it_is_set() {
        let heard = Heard(Mutex::new(Vec::new()));
        let context = std::ptr::from_ref(&heard).cast_mut().cast();
        let say = |what: &str| {
            tracing::info!(blocks = 3, pool = "p", "said {what}");
            tracing::debug!("too fine");
        };
        scope(|| say("before"));
        let thread = always(|| {
            let inherited = dispatcher::get_default(Clone::clone);
            set(Some(hear), context, KVB_LOG_INFO).unwrap();
            say("in a call");
            std::thread::spawn(move || {
                let _log = dispatcher::set_default(&inherited);
                say("in a thread");
            })
        });
        thread.join().unwrap();
        scope(|| say("while set"));
        say("outside of calls");
        set(None, std::ptr::null_mut(), 0).unwrap();
        scope(|| say("afterwards"));

        let expected = ["in a call", "in a thread", "while set"]
            .map(|what| (KVB_LOG_INFO, format!("said {what} blocks=3 pool=p")));
        assert_eq!(*heard.0.lock(), expected);
    }
}
