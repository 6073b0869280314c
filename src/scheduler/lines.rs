//! What a pass needs of the requests that decode, and nothing else.
//!
//! Most steps of most passes bring one token that completes no block. What decides about such a step lies in the request's
//! *line*, a few bytes beside the lines of the others; the tokens that lines took lie beside each other, too. A pass of
//! requests that decode in step so reads and writes memory in the order it lies in, at the speed it comes.
//!
//! A line runs ahead of its record by the tokens it took. [`Records`](super::records::Records) lets nobody see a record that is
//! behind, but for what no token changes.

use super::Decoding;

/// So many tokens a line takes at most before its record has to take them. With blocks of as many tokens one line lasts from
/// block to block.
const MOST: usize = 32;

/// Places for so many requests are made at once.
const PLACES: usize = 64;

/// What a pass needs to know of a request to take its next tokens one by one.
#[derive(Debug, Clone, Copy)]
struct Line {
    id: u64,
    /// The call of `build` that saw it last.
    seen_in: u64,
    limits: Limits,
}

/// Up to where a request decodes with nothing else to do.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// That many tokens. None: its record is to be asked.
    pub room: u16,
    /// That many of them are left.
    pub left: u16,
    /// The tokens that are known when these were taken, and one.
    pub beyond: u32,
    /// From this position on the prompt is computed.
    pub first: u32,
    /// With so many tokens computed there is a block to save.
    pub end: u32,
}

/// The lines of all records, at their records' places.
pub(super) struct Lines {
    lines: Vec<Line>,
    /// The tokens that lines took: for each number of tokens left to take a row with one place per line.
    kept: Vec<i32>,
    /// Places in a row.
    width: usize,
    rows: usize,
}

impl Lines {
    /// None yet, for blocks of this size.
    pub fn new(block_tokens: u64) -> Self {
        Self {
            lines: Vec::new(),
            kept: Vec::new(),
            width: 0,
            rows: usize::try_from(block_tokens).map_or(MOST, |tokens| tokens.min(MOST)),
        }
    }

    /// So many tokens a line takes at most.
    pub fn most(&self) -> u16 {
        // At most MOST.
        self.rows as u16
    }

    /// Takes a step of the request if it lies there and its line allows it. False: nothing changed.
    #[inline(always)] // into the loop over the steps
    pub fn take(&mut self, place: u32, id: u64, step: &Decoding, call: u64) -> bool {
        let place = place as usize;
        let Some(line) = self.lines.get_mut(place) else {
            return false;
        };
        let (limits, position) = (&mut line.limits, step.computed_position);
        let left = limits.left;
        let known = u64::from(limits.beyond) - u64::from(left);
        let Some(computed) = position.checked_add(step.scheduled_tokens) else {
            return false;
        };
        if line.id != id
            || line.seen_in == call
            || left == 0
            || position > known
            || position < u64::from(limits.first)
            || computed >= u64::from(limits.end)
        {
            return false;
        }
        let row = usize::from(left) - 1;
        let Some(token) = self.kept.get_mut(row * self.width + place) else {
            return false;
        };
        *token = step.token;
        limits.left = left - 1;
        line.seen_in = call;
        true
    }

    /// Whose line this is.
    pub fn id(&self, place: u32) -> Option<u64> {
        Some(self.lines.get(place as usize)?.id)
    }

    /// The call of `build` that saw this request last.
    pub fn seen_in(&mut self, place: u32) -> Option<&mut u64> {
        Some(&mut self.lines.get_mut(place as usize)?.seen_in)
    }

    /// From now on this one takes tokens.
    pub fn begin(&mut self, place: u32, limits: Limits) {
        if let Some(line) = self.lines.get_mut(place as usize) {
            line.limits = limits;
        }
    }

    /// From now on this one takes no tokens. Gives `record` those it took, if it took any.
    #[inline]
    pub fn end(&mut self, place: u32, record: impl FnOnce(&[i32])) {
        let Some(line) = self.lines.get(place as usize) else {
            return;
        };
        if line.limits.left != line.limits.room {
            self.taken(place, record);
        }
        if let Some(line) = self.lines.get_mut(place as usize) {
            line.limits = Limits::default();
        }
    }

    /// Shows the tokens that this one took since it began.
    #[inline(never)] // most ends have none
    pub fn taken(&self, place: u32, show: impl FnOnce(&[i32])) {
        let mut tokens = [0; MOST];
        let mut count = 0;
        if let Some(line) = self.lines.get(place as usize) {
            let rows = (line.limits.left..line.limits.room).rev();
            for (token, row) in tokens.iter_mut().zip(rows) {
                let at = usize::from(row) * self.width + place as usize;
                *token = self.kept.get(at).copied().unwrap_or_default();
                count += 1;
            }
        }
        show(&tokens[..count]);
    }

    /// Adds the line of a record that comes behind all others.
    pub fn push(&mut self, id: u64) {
        self.lines.push(Line {
            id,
            seen_in: 0,
            limits: Limits::default(),
        });
        if self.lines.len() > self.width {
            self.widen();
        }
    }

    fn widen(&mut self) {
        let more = (self.width / 4).next_multiple_of(PLACES).max(PLACES);
        let width = self.width + more;
        let mut kept = vec![0; width * self.rows];
        if self.width > 0 {
            let rows = self.kept.chunks_exact(self.width);
            for (new, old) in kept.chunks_exact_mut(width).zip(rows) {
                new[..old.len()].copy_from_slice(old);
            }
        }
        (self.kept, self.width) = (kept, width);
    }

    /// Removes a line; the last one takes its place. What they took lies at their places, so both have to have ended.
    pub fn swap_remove(&mut self, place: u32) {
        self.lines.swap_remove(place as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Decoding = Decoding {
        token: 0,
        computed_position: 50,
        scheduled_tokens: 1,
    };

    fn limits(room: u16) -> Limits {
        Limits {
            room,
            left: room,
            beyond: 51 + u32::from(room),
            first: 10,
            end: 1000,
        }
    }

    #[test]
    fn a_line_is_half_a_cache_line() {
        assert_eq!(size_of::<Line>(), 32);
    }

    #[test]
    fn tokens_come_back_in_order_while_places_are_added() {
        let mut lines = Lines::new(32);
        lines.push(1000);
        lines.begin(0, limits(32));
        for call in 1..=32 {
            for id in 0..20 {
                lines.push(id);
            }
            let step = Decoding {
                token: call as i32,
                ..STEP
            };
            assert!(lines.take(0, 1000, &step, call));
        }
        let mut seen = Vec::new();
        lines.end(0, |tokens| seen.extend_from_slice(tokens));
        assert_eq!(seen, (1..=32).collect::<Vec<_>>());
        assert!(!lines.take(0, 1000, &STEP, 40), "it has ended");
        lines.end(0, |_| unreachable!("it gave them already"));
    }

    #[test]
    fn what_a_line_does_not_allow_changes_nothing() {
        let refused: [(&str, u64, Decoding, u64); 6] = [
            ("another request", 8, STEP, 2),
            ("listed twice", 7, STEP, 1),
            (
                "a position that is not known",
                7,
                Decoding {
                    computed_position: 53,
                    ..STEP
                },
                2,
            ),
            (
                "inside the prompt",
                7,
                Decoding {
                    computed_position: 9,
                    ..STEP
                },
                2,
            ),
            (
                "a block to save",
                7,
                Decoding {
                    scheduled_tokens: 950,
                    ..STEP
                },
                2,
            ),
            (
                "beyond all numbers",
                7,
                Decoding {
                    scheduled_tokens: u64::MAX,
                    ..STEP
                },
                2,
            ),
        ];
        let mut lines = Lines::new(16);
        assert_eq!(lines.most(), 16);
        lines.push(7);
        assert!(!lines.take(0, 7, &STEP, 1), "it has not begun");
        lines.begin(0, limits(2));
        assert!(!lines.take(1, 7, &STEP, 1), "there is none");
        assert!(lines.take(0, 7, &STEP, 1));
        for (what, id, step, call) in refused {
            assert!(!lines.take(0, id, &step, call), "{what}");
        }
        let last = Decoding {
            token: 5,
            computed_position: 52,
            scheduled_tokens: 947,
        };
        assert!(lines.take(0, 7, &last, 2));
        assert!(!lines.take(0, 7, &STEP, 3), "it is full");
        lines.taken(0, |tokens| assert_eq!(tokens, [0, 5]));
    }

    #[test]
    fn a_removed_line_leaves_its_place_to_the_last() {
        let mut lines = Lines::new(32);
        for id in 0..3 {
            lines.push(id);
        }
        lines.swap_remove(0);
        assert_eq!(
            [lines.id(0), lines.id(1), lines.id(2)],
            [Some(2), Some(1), None]
        );
    }
}
