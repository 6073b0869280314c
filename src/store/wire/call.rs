//! A call of the master in parts, whose answers are taken one after another: while the bytes of one part move, the master
//! works on the next.

use std::ops::Range;
use std::time::Instant;

use super::master::{Link, Master};
use super::pack::{Answer, Request, unpack};
use super::rpc::{Failure, Open, Requests};

/// Keys of one request at most; longer batches are several requests, sent together.
pub const KEYS_PER_REQUEST: usize = 1024;

/// Bytes of the first part of a batch. Enough that the pause at its end is little beside it.
const FIRST_PART: u64 = 2 << 20;

/// May a call be made twice?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twice {
    /// It changes nothing that making it again would not.
    Yes,
    /// Who makes it again might do it twice.
    No,
}

/// One request, or as few as the limit allows.
pub fn whole(keys: usize) -> Vec<Range<usize>> {
    (0..keys)
        .step_by(KEYS_PER_REQUEST)
        .map(|start| start..keys.min(start + KEYS_PER_REQUEST))
        .collect()
}

/// Parts of a batch of objects of these sizes, each of about twice the bytes of the one before: the first is soon there, and
/// the pauses between them are few.
pub fn growing(sizes: impl Iterator<Item = u64>) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut end) = (Vec::new(), 0, 0);
    let (mut bytes, mut enough) = (0_u64, FIRST_PART);
    for size in sizes {
        if bytes >= enough || end - start == KEYS_PER_REQUEST {
            parts.push(start..end);
            (start, bytes, enough) = (end, 0, enough.saturating_mul(2));
        }
        bytes = bytes.saturating_add(size);
        end += 1;
    }
    if start < end {
        parts.push(start..end);
    }
    parts
}

/// A call that goes on. Dropping it before all parts are answered closes its connection.
#[derive(Debug)]
pub struct Call<'m, F> {
    master: &'m Master,
    request: F,
    parts: Vec<Range<usize>>,
    twice: Twice,
    state: State,
}

#[derive(Debug)]
enum State {
    Going {
        link: Link,
        open: Open,
        /// The link has served before: the master may have gone since.
        was_idle: bool,
    },
    Answered,
    /// Nothing more will be answered.
    Failed(Failure),
}

impl<'m, R: Request, F: Fn(Range<usize>) -> R> Call<'m, F> {
    /// Sends a request per part, as far as that needs no waiting. Blocks: until `deadline` at most, where a connection has
    /// to be made. Failures are those of [`wait`](Self::wait).
    pub fn begin(
        master: &'m Master,
        parts: Vec<Range<usize>>,
        twice: Twice,
        deadline: Instant,
        request: F,
    ) -> Self {
        let mut call = Self {
            master,
            request,
            parts,
            twice,
            state: State::Answered,
        };
        if !call.parts.is_empty() {
            let idle = master.take_idle();
            call.send(idle, deadline);
        }
        call
    }

    /// Its parts.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// Waits until this part is answered: `take` hears of each part once, in any order, of some twice when a connection
    /// is lost in between. Blocks until `deadline` at most.
    ///
    /// Errors: those of [`Connection::exchange`](super::rpc::Connection::exchange), and the same for all parts that were not answered.
    pub fn wait(
        &mut self,
        part: usize,
        deadline: Instant,
        mut take: impl FnMut(Range<usize>, R::Reply<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            let State::Going { was_idle, .. } = self.state else {
                break;
            };
            match self.wait_once(part, deadline, &mut take) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The master may have gone in the very moment, and another be there.
                Err(Failure::Lost(_)) if was_idle && self.twice == Twice::Yes => {
                    self.send(None, deadline);
                }
                Err(failure) => self.state = State::Failed(failure),
            }
        }
        match &self.state {
            State::Failed(failure) => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    /// Waits for all parts. As [`wait`](Self::wait).
    pub fn all(
        &mut self,
        deadline: Instant,
        mut take: impl FnMut(Range<usize>, R::Reply<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        (0..self.parts.len()).try_for_each(|part| self.wait(part, deadline, &mut take))
    }

    /// Waits for all parts: one answer per key.
    pub fn answers<T>(&mut self, deadline: Instant) -> Answers<T>
    where
        R: for<'r> Request<Reply<'r> = Vec<Answer<T>>>,
    {
        let keys = self.parts.last().map_or(0, |part| part.end);
        let mut list: Vec<Option<Answer<T>>> = Vec::new();
        list.resize_with(keys, || None);
        let mut put = |index: usize, answer| {
            if let Some(slot) = list.get_mut(index) {
                *slot = Some(answer);
            }
        };
        let failure = self
            .all(deadline, |part, answers| spread(part, answers, &mut put))
            .err();
        Answers { list, failure }
    }

    /// Takes what comes next, and says whether the part is answered.
    fn wait_once(
        &mut self,
        part: usize,
        deadline: Instant,
        take: &mut impl FnMut(Range<usize>, R::Reply<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let State::Going { link, open, .. } = &mut self.state else {
            return Ok(true);
        };
        let (family, parts) = (link.family, &self.parts);
        // Also where something always comes, so that nothing is waited for.
        if Instant::now() >= deadline {
            return Err(Failure::Deadline);
        }
        if !open.has_answered(part) {
            let is_something = link.connection.step(open, |index, answer| {
                let answer = unpack(answer.map_err(Failure::Refused)?, family)?;
                take(parts.get(index).cloned().unwrap_or_default(), answer)
            })?;
            if !is_something {
                link.connection.wait(open, deadline)?;
            }
        }
        let is_there = open.has_answered(part);
        if open.is_answered() {
            link.connection.end(open)?;
            if let State::Going { link, .. } = std::mem::replace(&mut self.state, State::Answered) {
                self.master.keep(link);
            }
        }
        Ok(is_there)
    }

    fn send(&mut self, idle: Option<Link>, deadline: Instant) {
        self.state = self.sent(idle, deadline).unwrap_or_else(State::Failed);
    }

    fn sent(&self, idle: Option<Link>, deadline: Instant) -> Result<State, Failure> {
        if Instant::now() >= deadline {
            return Err(Failure::Deadline);
        }
        let was_idle = idle.is_some();
        let mut link = match idle {
            Some(link) => link,
            None => self.master.link(deadline)?,
        };
        let mut requests = Requests::default();
        for part in &self.parts {
            requests.push(&(self.request)(part.clone()), link.family)?;
        }
        let mut open = link.connection.begin(requests);
        // A connection that is lost shows again when its answers are waited for.
        let _ = link.connection.send(&mut open);
        Ok(State::Going {
            link,
            open,
            was_idle,
        })
    }
}

/// Answers per key; those that are missing were lost by the failure.
#[derive(Debug)]
pub struct Answers<T> {
    list: Vec<Option<Answer<T>>>,
    failure: Option<Failure>,
}

impl<T> Answers<T> {
    /// Why some are missing, if any are.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// One per key, with `lost` for those that are missing.
    pub fn or(self, lost: i32) -> impl Iterator<Item = Answer<T>> {
        self.list
            .into_iter()
            .map(move |answer| answer.unwrap_or(Err(lost)))
    }
}

/// Hands the answers of one part on, of which there must be one per key.
pub fn spread<T>(
    part: Range<usize>,
    answers: Vec<T>,
    take: &mut impl FnMut(usize, T),
) -> Result<(), Failure> {
    if answers.len() != part.len() {
        return Err(Failure::Nonsense(format!(
            "{} answers for {} keys",
            answers.len(),
            part.len()
        )));
    }
    part.zip(answers)
        .for_each(|(index, answer)| take(index, answer));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_and_leave_nothing_out() {
        let of = |sizes: &[u64]| growing(sizes.iter().copied());
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[1]), [0..1]);
        let mib = 1 << 20;
        assert_eq!(of(&[mib; 2]), [0..2]);
        assert_eq!(of(&[mib; 16]), [0..2, 2..6, 6..14, 14..16]);
        assert_eq!(of(&[8 * mib; 3]), [0..1, 1..2, 2..3]);
        assert_eq!(of(&[u64::MAX; 2]), [0..1, 1..2]);
        let few = KEYS_PER_REQUEST;
        assert_eq!(
            of(&vec![1; 2 * few + 1]),
            [0..few, few..2 * few, 2 * few..2 * few + 1]
        );
        assert_eq!(whole(2 * few + 1), of(&vec![1; 2 * few + 1]));
    }
}
