//! The hashes of one request's blocks, extended as tokens arrive.

use std::fmt;

use super::tokens::encode;
use super::{MAX_HASH_LEN, Scheme, Scope, Seed, Tokens, kvb1, seed, trtllm};
use crate::error::{Result, bail};
use blake2b_simd::many::{HashManyJob, hash_many};

/// Up to this many bytes of text a chain takes the memory of a whole block with its first token.
const SMALL_TEXT: usize = 4096;

/// A request's block hashes. Block `b` covers `tokens_per_block` tokens and the lookahead behind
/// them, and exists once its last lookahead token is there. Each hash covers all tokens before it.
///
/// In memory: the hashes (at most 36 bytes per block with all slack) and the encoded tokens of the
/// one block that is still open. How a token list is cut into steps has no influence on the hashes.
///
/// With a lookahead only prompt tokens may count; the chain hashes what it is given, so the caller
/// decides where the prompt ends.
#[derive(Clone)]
pub struct Chain {
    /// The text that the next block's hash is taken over: its parent, then its encoded tokens. Behind `filled` tokens
    /// it is anything; it is never longer than the whole block.
    text: Box<[u8]>,
    /// How many tokens of the text are there; fewer than `window` between calls.
    filled: u32,
    tokens_per_block: u32,
    lookahead: u32,
    scheme: Scheme,
    /// The seed, then the blocks' hashes: each block's parent stands before it.
    hashes: Vec<u8>,
}

impl Chain {
    /// Starts a chain of `tokens_per_block` tokens per block, with no tokens.
    ///
    /// Fails with `InvalidArgument` when `tokens_per_block` is 0 or has, with the lookahead, no 32-bit number, or
    /// when the seed was made for another scheme or lookahead.
    pub fn new(scheme: Scheme, tokens_per_block: u32, lookahead: u32, seed: Seed) -> Result<Self> {
        if tokens_per_block == 0 {
            bail!(
                InvalidArgument,
                "tokens_per_block is 0; a block has at least one token"
            );
        }
        if tokens_per_block.checked_add(lookahead).is_none() {
            bail!(
                InvalidArgument,
                "tokens_per_block {tokens_per_block} and lookahead {lookahead} together have 2^32 tokens or more"
            );
        }
        if (seed.scheme(), seed.lookahead()) != (scheme, lookahead) {
            bail!(
                InvalidArgument,
                "a seed for {} with lookahead {} cannot start a chain of {} with lookahead {lookahead}",
                seed.scheme().name(),
                seed.lookahead(),
                scheme.name()
            );
        }
        Ok(Self {
            text: seed.as_bytes().into(),
            filled: 0,
            tokens_per_block,
            lookahead,
            scheme,
            hashes: seed.as_bytes().into(),
        })
    }

    /// Forgets all tokens and starts again under `seed`, with the seed's scheme and lookahead and
    /// the same block size. Keeps its memory.
    pub fn reset(&mut self, seed: Seed) {
        (self.scheme, self.lookahead) = (seed.scheme(), seed.lookahead());
        let parent = seed.as_bytes();
        self.hashes.clear();
        self.hashes.extend_from_slice(parent);
        self.filled = 0;
        // A block of the new scheme may be shorter than one of the old.
        if self.text.len() < parent.len() || self.text.len() > self.text_end(self.window()) {
            self.text = parent.into();
        } else {
            self.text[..parent.len()].copy_from_slice(parent);
        }
    }

    /// Appends tokens if they complete no block and are ones that [`extend`](Self::extend) takes; false: they were not, and
    /// the caller extends. What every decoding request of every pass needs, without the rest.
    #[inline(always)] // into the loop over the requests
    pub fn extend_open(&mut self, tokens: Tokens<'_>) -> bool {
        let (text, filled) = (&mut *self.text, self.filled as usize);
        let done = match (self.scheme, tokens) {
            (Scheme::Trtllm, Tokens::I32(tokens)) => {
                let bytes = |token| i64::from(token).to_le_bytes();
                encode_open(text, trtllm::HASH_LEN, filled, tokens, bytes)
            }
            (Scheme::Trtllm, Tokens::I64(tokens)) => {
                encode_open(text, trtllm::HASH_LEN, filled, tokens, i64::to_le_bytes)
            }
            (Scheme::Kvb1, Tokens::I32(tokens)) => {
                encode_open(text, kvb1::HASH_LEN, filled, tokens, i32::to_le_bytes)
            }
            (Scheme::Kvb1, Tokens::I64(list)) => {
                let bytes = |token: i64| (token as i32).to_le_bytes();
                kvb1::check(tokens).is_ok()
                    && encode_open(text, kvb1::HASH_LEN, filled, list, bytes)
            }
        };
        if done {
            self.filled += tokens.len() as u32;
        }
        done
    }

    /// So many tokens [`extend_open`](Self::extend_open) takes, in one call or in several, without a look at their values.
    pub fn open_room(&self) -> usize {
        let text = self.text.len().saturating_sub(self.scheme.hash_len());
        (text / self.scheme.token_bytes()).saturating_sub(self.filled as usize + 1)
    }

    /// Whether these are tokens that [`extend`](Self::extend) takes.
    pub fn can_hash(&self, tokens: Tokens<'_>) -> bool {
        self.scheme != Scheme::Kvb1 || kvb1::check(tokens).is_ok()
    }

    /// Takes back the `count` tokens that [`extend_open`](Self::extend_open) appended last.
    pub fn retract_open(&mut self, count: usize) {
        self.filled = self.filled.saturating_sub(count as u32);
    }

    /// Appends tokens and hashes every block they complete.
    ///
    /// With `kvb1` a token outside int32 is refused with `InvalidArgument`; the chain is then
    /// unchanged.
    pub fn extend(&mut self, tokens: Tokens<'_>) -> Result<()> {
        self.prepare(tokens)?;
        let mut rest = tokens;
        match self.scheme() {
            Scheme::Trtllm => {
                let params = trtllm::params();
                while self.fill_up(&mut rest) {
                    let hash = trtllm::block(&params, self.block_text());
                    self.append(&hash);
                }
            }
            Scheme::Kvb1 => {
                while self.fill_up(&mut rest) {
                    let hash = kvb1::block(self.block_text());
                    self.append(&hash);
                }
            }
        }
        Ok(())
    }

    /// Appends what `all`, the request's whole token list, has beyond the tokens already here. That
    /// the lists agree up to there is the caller's business (see [`TokenDigest`](super::TokenDigest)).
    ///
    /// Fails with `InvalidArgument` when the list has shrunk, and like [`extend`](Self::extend).
    pub fn extend_to(&mut self, all: Tokens<'_>) -> Result<()> {
        let known = self.known_tokens();
        match all.slice(known..all.len()) {
            Some(new) => self.extend(new),
            None => bail!(
                InvalidArgument,
                "the token list has shrunk from {known} to {} tokens",
                all.len()
            ),
        }
    }

    /// Whether this is what it began with.
    pub fn begins_with(&self, seed: &Seed) -> bool {
        (self.scheme, self.lookahead) == (seed.scheme(), seed.lookahead())
            && self.hashes.starts_with(seed.as_bytes())
    }

    /// The scheme of the hashes.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// How many tokens there are in one block.
    pub fn tokens_per_block(&self) -> u32 {
        self.tokens_per_block
    }

    /// How many tokens went in, those of the open block included.
    pub fn token_count(&self) -> u64 {
        self.known_tokens() as u64
    }

    /// How many blocks are hashed.
    pub fn block_count(&self) -> usize {
        // Divided by constants, which costs a shift.
        let parents = match self.scheme() {
            Scheme::Trtllm => self.hashes.len() / trtllm::HASH_LEN,
            Scheme::Kvb1 => self.hashes.len() / kvb1::HASH_LEN,
        };
        // The seed is the first.
        parents - 1
    }

    /// The hash of block `block`, or `None` when it is not hashed yet.
    pub fn hash(&self, block: usize) -> Option<&[u8]> {
        self.parent(block.checked_add(1)?)
    }

    /// All hashes, one behind the other, [`Scheme::hash_len`] bytes each.
    pub fn hashes(&self) -> &[u8] {
        &self.hashes[self.scheme().hash_len()..]
    }

    /// The parent of block `block`: the hash of the block before it, or the seed. Known for every
    /// hashed block and for the one to come; `None` behind it.
    pub fn parent(&self, block: usize) -> Option<&[u8]> {
        let length = self.scheme().hash_len();
        let start = block.checked_mul(length)?;
        self.hashes.get(start..start.checked_add(length)?)
    }

    fn known_tokens(&self) -> usize {
        self.block_count() * self.block_tokens() + self.filled as usize
    }

    /// How many tokens a block's hash is taken over.
    fn window(&self) -> usize {
        self.block_tokens() + self.lookahead as usize
    }

    fn block_tokens(&self) -> usize {
        self.tokens_per_block as usize
    }

    /// Checks the tokens and makes room for the hashes they will give.
    fn prepare(&mut self, tokens: Tokens<'_>) -> Result<()> {
        if self.scheme() == Scheme::Kvb1 {
            kvb1::check(tokens)?;
        }
        let Some(beyond) = (self.filled as usize + tokens.len()).checked_sub(self.window()) else {
            return Ok(());
        };
        let length = self.scheme().hash_len();
        let needed = (beyond / self.block_tokens() + 1) * length;
        if self.hashes.capacity() - self.hashes.len() < needed {
            // Slack of an eighth instead of Vec's doubling: hashes are most of what a request costs.
            let slack = (self.block_count() / 8).max(2) * length;
            let more = needed.max(slack);
            if self.hashes.try_reserve_exact(more).is_err() {
                bail!(
                    NoMemory,
                    "{more} bytes for the hashes of the prompt's blocks"
                );
            }
        }
        Ok(())
    }

    /// Moves tokens from the front of `rest` into the open block. True when it is complete.
    fn fill_up(&mut self, rest: &mut Tokens<'_>) -> bool {
        let filled = self.filled as usize;
        let take = (self.window() - filled).min(rest.len());
        let start = self.text_end(filled);
        let end = self.text_end(filled + take);
        if self.text.len() < end {
            self.grow(end);
        }
        let out = &mut self.text[start..end];
        match (self.scheme, &mut *rest) {
            (Scheme::Trtllm, Tokens::I32(tokens)) => {
                encode(split_front(tokens, take), out.as_chunks_mut().0, |token| {
                    i64::from(token).to_le_bytes()
                });
            }
            (Scheme::Trtllm, Tokens::I64(tokens)) => {
                encode(
                    split_front(tokens, take),
                    out.as_chunks_mut().0,
                    i64::to_le_bytes,
                );
            }
            (Scheme::Kvb1, Tokens::I32(tokens)) => {
                encode(
                    split_front(tokens, take),
                    out.as_chunks_mut().0,
                    i32::to_le_bytes,
                );
            }
            (Scheme::Kvb1, Tokens::I64(tokens)) => {
                // `prepare` has refused what this would cut.
                encode(split_front(tokens, take), out.as_chunks_mut().0, |token| {
                    (token as i32).to_le_bytes()
                });
            }
        }
        // Below the window, which has a 32-bit number.
        self.filled += take as u32;
        self.filled as usize == self.window()
    }

    /// Makes the text at least so long. A block of usual size is made whole at once; a huge one grows with its tokens.
    fn grow(&mut self, end: usize) {
        let whole = self.text_end(self.window());
        let length = whole.min(end.max(SMALL_TEXT).max(2 * self.text.len()));
        let mut text = vec![0; length].into_boxed_slice();
        text[..self.text.len()].copy_from_slice(&self.text);
        self.text = text;
    }

    /// Where the text ends that has `tokens` tokens.
    fn text_end(&self, tokens: usize) -> usize {
        self.scheme().hash_len() + tokens * self.scheme().token_bytes()
    }

    /// The whole text of the block that [`fill_up`](Self::fill_up) reported complete.
    fn block_text(&self) -> &[u8] {
        &self.text[..self.text_end(self.window())]
    }

    /// Takes the complete block's hash and opens the next block: its parent is that hash, its first
    /// tokens are the lookahead of the old one.
    fn append(&mut self, hash: &[u8]) {
        self.hashes.extend_from_slice(hash);
        self.text[..hash.len()].copy_from_slice(hash);
        if self.lookahead > 0 {
            let overlap = self.text_end(self.block_tokens())..self.text_end(self.window());
            self.text.copy_within(overlap, hash.len());
        }
        self.filled = self.lookahead;
    }
}

/// Encodes tokens behind the first `filled` of a block's text that begins with `head` bytes of its parent. False if they
/// reach its end: the text is at most the whole block, so the others complete none.
#[inline(always)] // as its caller
fn encode_open<E: Copy, const WIDTH: usize>(
    text: &mut [u8],
    head: usize,
    filled: usize,
    tokens: &[E],
    bytes: impl Fn(E) -> [u8; WIDTH],
) -> bool {
    // One token mostly: a loop over them would become a call.
    if let [token] = tokens {
        return encode_one(text, head, filled, bytes(*token));
    }
    let room = text
        .get_mut(head..)
        .and_then(|text| text.as_chunks_mut().0.get_mut(filled..));
    match room {
        Some(room) if tokens.len() < room.len() => encode(tokens, room, bytes),
        _ => return false,
    }
    true
}

/// [`encode_open`] with one token.
#[inline(always)] // as its caller
fn encode_one<const WIDTH: usize>(
    text: &mut [u8],
    head: usize,
    filled: usize,
    bytes: [u8; WIDTH],
) -> bool {
    let from = head + filled * WIDTH;
    // With room for another one behind it: else it completes the block, or the text has to grow.
    match text.get_mut(from..from + 2 * WIDTH) {
        Some(room) => {
            room[..WIDTH].copy_from_slice(&bytes);
            true
        }
        None => false,
    }
}

/// Without the bytes of the text that mean nothing, so that equal chains read the same.
impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.text.get(..self.text_end(self.filled as usize));
        f.debug_struct("Chain")
            .field("lookahead", &self.lookahead)
            .field("hashes", &self.hashes)
            .field("open", &open)
            .finish_non_exhaustive()
    }
}

fn split_front<'a, E>(tokens: &mut &'a [E], count: usize) -> &'a [E] {
    let (front, rest) = tokens.split_at(count);
    *tokens = rest;
    front
}

/// How many chains advance side by side. BLAKE2b's SIMD takes 4 lanes at a time; 16 spread its fixed
/// cost and keep the lanes full when some chains have nothing left.
const LANES: usize = 16;

/// Extends many chains at once, each by its own tokens: the same result as one
/// [`extend`](Chain::extend) after the other, but BLAKE2b runs over several requests side by side.
///
/// A token that `kvb1` refuses is an `InvalidArgument`; no chain has then changed.
pub fn extend_many(batch: &mut [(&mut Chain, Tokens<'_>)]) -> Result<()> {
    for (chain, tokens) in batch.iter_mut() {
        chain.prepare(*tokens)?;
    }
    let params = trtllm::params();
    for lanes in batch.chunks_mut(LANES) {
        loop {
            let mut jobs = [const { None }; LANES];
            for (job, (chain, rest)) in jobs.iter_mut().zip(lanes.iter_mut()) {
                while chain.fill_up(rest) {
                    if chain.scheme() == Scheme::Trtllm {
                        *job = Some(HashManyJob::new(&params, chain.block_text()));
                        break;
                    }
                    // Keyed BLAKE3 has no form for several inputs; such a chain runs through.
                    let hash = kvb1::block(chain.block_text());
                    chain.append(&hash);
                }
            }
            if jobs.iter().all(Option::is_none) {
                break;
            }
            hash_many(jobs.iter_mut().flatten());
            let hashes = jobs.map(|job| job.map(|job| trtllm::digest(&job.to_hash())));
            for (hash, (chain, _)) in hashes.iter().zip(lanes.iter_mut()) {
                if let Some(hash) = hash {
                    chain.append(hash);
                }
            }
        }
    }
    Ok(())
}

/// The hashes of all whole blocks of `tokens`, one behind the other: what a [`Chain`] over them
/// holds. For tools; a request keeps a chain. Fails like [`seed()`](super::seed()), [`Chain::new`]
/// and [`Chain::extend`].
pub fn hash_blocks(
    scheme: Scheme,
    scope: &Scope<'_>,
    tokens: Tokens<'_>,
    tokens_per_block: u32,
) -> Result<Vec<u8>> {
    let seed = seed(scheme, scope)?;
    let mut chain = Chain::new(scheme, tokens_per_block, scope.lookahead, seed)?;
    chain.extend(tokens)?;
    Ok(chain.hashes().to_vec())
}

// A digest is written over the parent in front of the text: both are a hash of the same scheme.
const _: () = assert!(trtllm::HASH_LEN <= MAX_HASH_LEN && kvb1::HASH_LEN == MAX_HASH_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_kept() {
        for scheme in [Scheme::Trtllm, Scheme::Kvb1] {
            let seed = seed(scheme, &Scope::default()).unwrap();
            let mut chain = Chain::new(scheme, 16, 0, seed).unwrap();
            for token in 0..160_000 {
                chain.extend(Tokens::I32(&[token])).unwrap();
                let blocks = chain.block_count();
                assert!(chain.hashes.capacity() <= 36 * blocks + 64, "{blocks}");
            }
            assert!(chain.text.len() <= scheme.hash_len() + 16 * scheme.token_bytes());
            let memory = |chain: &Chain| (chain.hashes.as_ptr(), chain.text.as_ptr());
            let before = memory(&chain);
            chain.reset(seed);
            assert_eq!((chain.block_count(), chain.token_count()), (0, 0));
            chain.extend(Tokens::I32(&[7; 160_000])).unwrap();
            assert_eq!(memory(&chain), before);
        }
    }

    #[test]
    fn a_reset_may_change_scheme_and_lookahead() {
        let tokens: Vec<i32> = (0..100).collect();
        let start = seed(Scheme::Trtllm, &Scope::default()).unwrap();
        let mut chain = Chain::new(Scheme::Trtllm, 16, 0, start).unwrap();
        for (scheme, lookahead) in [(Scheme::Kvb1, 0), (Scheme::Kvb1, 9), (Scheme::Trtllm, 40)] {
            let scope = Scope {
                lookahead,
                ..Scope::default()
            };
            chain.extend(Tokens::I32(&tokens)).unwrap();
            chain.reset(seed(scheme, &scope).unwrap());
            chain.extend(Tokens::I32(&tokens)).unwrap();
            let expected = hash_blocks(scheme, &scope, Tokens::I32(&tokens), 16).unwrap();
            assert_eq!(chain.hashes(), expected);
        }
    }

    #[test]
    fn huge_blocks_take_no_memory_before_their_tokens() {
        let scope = Scope {
            lookahead: u32::MAX / 2,
            ..Scope::default()
        };
        let seed = seed(Scheme::Kvb1, &scope).unwrap();
        let error = Chain::new(Scheme::Kvb1, u32::MAX / 2 + 2, u32::MAX / 2, seed).unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::InvalidArgument);
        let mut chain = Chain::new(Scheme::Kvb1, u32::MAX / 2 + 1, u32::MAX / 2, seed).unwrap();
        chain.extend(Tokens::I32(&[1; 1000])).unwrap();
        assert_eq!((chain.block_count(), chain.token_count()), (0, 1000));
        assert!(chain.text.len() < 16_384);
    }
}
