//! A store that takes a piece only where it lies in one range that was registered, as an adapter of a network does.

use std::sync::Arc;

use kvbridge::device::memory::{Source, Target};
use kvbridge::error::{Error, Kind, Result};
use kvbridge::keys::Keys;
use kvbridge::layout::Range;
use kvbridge::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, code,
};
use parking_lot::Mutex;

#[derive(Default)]
struct State {
    registered: Vec<Range>,
    /// Pieces of each key of the last call.
    pieces: Vec<Vec<Range>>,
    /// Ranges by number, counted from 0, that are refused.
    refused: Vec<usize>,
    asked: usize,
    /// So many unregistrations fail.
    kept: usize,
}

pub struct Strict {
    inner: Arc<dyn Store>,
    pub capabilities: Capabilities,
    state: Mutex<State>,
}

impl Strict {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Self::with_pieces(inner, usize::MAX)
    }

    /// One that takes so many pieces per key.
    pub fn with_pieces(inner: Arc<dyn Store>, pieces: usize) -> Arc<Self> {
        let mut capabilities = inner.capabilities().clone();
        capabilities.pieces_per_key = pieces;
        Arc::new(Self {
            inner,
            capabilities,
            state: Mutex::default(),
        })
    }

    pub fn registered(&self) -> Vec<Range> {
        self.state.lock().registered.clone()
    }

    /// Pieces of each key of the last get or put.
    pub fn pieces(&self) -> Vec<Vec<Range>> {
        self.state.lock().pieces.clone()
    }

    /// Refuses those of the ranges that come from now on.
    pub fn refuse(&self, numbers: &[usize]) {
        let mut state = self.state.lock();
        state.refused = numbers.to_vec();
        state.asked = 0;
    }

    /// Does not give the next ranges back.
    pub fn keep(&self, count: usize) {
        self.state.lock().kept = count;
    }

    fn takes<P>(
        &self,
        keys: usize,
        pieces: &mut Pieces<'_, P>,
        range: impl Fn(&P) -> Range,
    ) -> bool {
        let mut state = self.state.lock();
        state.pieces = (0..keys)
            .map(|key| pieces.of(key).iter().map(&range).collect())
            .collect();
        let lies_in = |piece: &Range, outer: &Range| {
            outer.start <= piece.start && piece.start + piece.size <= outer.start + outer.size
        };
        state.pieces.iter().all(|own| {
            let registered = |piece| state.registered.iter().any(|outer| lies_in(piece, outer));
            own.len() <= self.capabilities.pieces_per_key && own.iter().all(registered)
        })
    }
}

impl Store for Strict {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        self.inner.exist(keys, out);
    }
    fn put(
        &self,
        keys: &Keys,
        mut sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let range = |piece: &Source<'_>| Range {
            start: piece.address(),
            size: piece.size(),
        };
        match self.takes(keys.len(), &mut sources, range) {
            true => self.inner.put(keys, sources, options, out),
            false => *out = vec![PutOutcome::Failed(code::UNREACHABLE_MEMORY); keys.len()],
        }
    }
    fn get(&self, keys: &Keys, mut targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        let range = |piece: &Target<'_>| Range {
            start: piece.address(),
            size: piece.size(),
        };
        match self.takes(keys.len(), &mut targets, range) {
            true => self.inner.get(keys, targets, out),
            false => *out = vec![GetOutcome::Failed(code::UNREACHABLE_MEMORY); keys.len()],
        }
    }
    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        self.inner.remove(keys, force, out);
    }
    fn register(&self, range: Range) -> Result<()> {
        let mut state = self.state.lock();
        state.asked += 1;
        if state.refused.contains(&(state.asked - 1)) {
            return Err(Error::new(Kind::PoolFailed, "no more regions"));
        }
        state.registered.push(range);
        Ok(())
    }
    fn unregister(&self, range: Range) -> Result<()> {
        let mut state = self.state.lock();
        if state.kept > 0 {
            state.kept -= 1;
            return Err(Error::new(Kind::PoolFailed, "still in use"));
        }
        let place = state.registered.iter().position(|known| *known == range);
        let Some(place) = place else {
            return Err(Error::new(Kind::PoolFailed, "never registered"));
        };
        state.registered.remove(place);
        Ok(())
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn is_outage(&self, code: i32) -> bool {
        self.inner.is_outage(code)
    }
    fn may_still_write(&self, code: i32) -> bool {
        self.inner.may_still_write(code)
    }
    fn may_still_read(&self, code: i32) -> bool {
        self.inner.may_still_read(code)
    }
    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
