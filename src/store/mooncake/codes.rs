//! What the numbers mean that Mooncake's functions answer with: the one place that knows them.

use crate::store::{GetOutcome, Presence, PutOutcome, RemoveOutcome, code};

/// Left in a list of answers before a call, to see which it did not write.
pub(super) const UNTOUCHED: i32 = i32::MIN;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Neither an allocator's block nor a tenant's quota has room.
    NoRoom,
    /// An argument that the pool does not take; of a get, a buffer that is too small.
    Invalid,
    /// Somebody is writing it.
    NotReady,
    NotFound,
    /// Somebody else was first.
    Exists,
    Leased,
    LeaseEnded,
    /// The pool, or a part of it, cannot be reached.
    Transport,
    Other,
}

fn meaning(code: i32) -> Meaning {
    match code {
        -200 | -1700 => Meaning::NoRoom,
        NOT_ALLOWED => Meaning::Invalid,
        -703 => Meaning::NotReady,
        -704 => Meaning::NotFound,
        -705 => Meaning::Exists,
        -706 => Meaning::Leased,
        -707 => Meaning::LeaseEnded,
        TRANSFER_FAILED | -900 | -901 => Meaning::Transport,
        _ => Meaning::Other,
    }
}

/// A peer did not take or give the bytes.
const TRANSFER_FAILED: i32 = -800;

/// An argument or an option that the master does not take, for example a pin that is longer than its maximum.
pub(in crate::store) const NOT_ALLOWED: i32 = -600;

/// What the master of a pool that keeps tenants apart says to a tenant that it does not know.
pub(in crate::store) const UNKNOWN_TENANT: i32 = -1701;

/// What the owner of a disk says of a key that it does not have, for example since it has evicted it.
pub(in crate::store) fn not_on_disk(code: i32) -> bool {
    // No such key; no such file.
    matches!(code, -400 | -1100) || meaning(code) == Meaning::NotFound
}

/// Also true where a key was left without an answer: what became of its buffer, nobody knows.
pub(super) fn is_outage(number: i32) -> bool {
    number == code::NO_ANSWER || meaning(number) == Meaning::Transport
}

/// A transfer had begun, or may have; where only the master did not answer none had.
pub(super) fn may_still_write(number: i32) -> bool {
    matches!(number, TRANSFER_FAILED | code::NO_ANSWER)
}

/// The master itself did not answer: any further question would wait as long.
pub(super) fn is_without_master(number: i32) -> bool {
    is_outage(number) && number != TRANSFER_FAILED
}

/// Whether an answer of a get says no more than that the buffer does not fit.
pub(super) fn is_misfit(outcome: GetOutcome) -> bool {
    matches!(outcome, GetOutcome::Failed(code) if meaning(code) == Meaning::Invalid)
}

pub(super) fn presence(code: i32) -> Presence {
    match code {
        1 => Presence::Present,
        0 => Presence::Absent,
        code => Presence::Unknown(code),
    }
}

/// The word of a put alone: see [`is_provisional`].
pub(in crate::store) fn put(code: i32) -> PutOutcome {
    match meaning(code) {
        _ if code == 0 => PutOutcome::Stored,
        Meaning::Exists => PutOutcome::AlreadyThere,
        Meaning::NoRoom => PutOutcome::NoSpace,
        _ => PutOutcome::Failed(code),
    }
}

/// A put is also answered so while another client writes the key, and for as long as the master has not noticed that this
/// one died. Nothing is there then, so that only a question tells: see [`confirmed`].
pub(in crate::store) fn is_provisional(outcome: PutOutcome) -> bool {
    matches!(outcome, PutOutcome::Stored | PutOutcome::AlreadyThere)
}

/// What a provisional outcome is worth, with the answer to whether the key is there.
pub(in crate::store) fn confirmed(outcome: PutOutcome, presence: Presence) -> PutOutcome {
    match presence {
        Presence::Present => outcome,
        Presence::Absent => PutOutcome::Failed(code::BEING_WRITTEN),
        Presence::Unknown(code) => PutOutcome::Failed(code),
    }
}

/// `answer`: bytes or a code; `size`: that of the target.
pub(in crate::store) fn get(answer: i64, size: u64) -> GetOutcome {
    if let Ok(bytes) = u64::try_from(answer) {
        return match bytes == size {
            true => GetOutcome::Landed(bytes),
            false => GetOutcome::WrongSize(bytes),
        };
    }
    let code = i32::try_from(answer).unwrap_or(code::NO_ANSWER);
    match meaning(code) {
        Meaning::NotFound | Meaning::NotReady => GetOutcome::Missing,
        Meaning::LeaseEnded => GetOutcome::Failed(code::LEASE_EXPIRED),
        _ => GetOutcome::Failed(code),
    }
}

pub(in crate::store) fn remove(code: i32) -> RemoveOutcome {
    match meaning(code) {
        _ if code == 0 => RemoveOutcome::Removed,
        Meaning::NotFound => RemoveOutcome::Missing,
        Meaning::Leased => RemoveOutcome::Leased,
        _ => RemoveOutcome::Failed(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_has_its_outcomes_and_the_rest_keeps_its_number() {
        for (code, put_is, get_is, remove_is) in [
            (
                -200,
                PutOutcome::NoSpace,
                GetOutcome::Failed(-200),
                RemoveOutcome::Failed(-200),
            ),
            (
                -1700,
                PutOutcome::NoSpace,
                GetOutcome::Failed(-1700),
                RemoveOutcome::Failed(-1700),
            ),
            (
                -703,
                PutOutcome::Failed(-703),
                GetOutcome::Missing,
                RemoveOutcome::Failed(-703),
            ),
            (
                -704,
                PutOutcome::Failed(-704),
                GetOutcome::Missing,
                RemoveOutcome::Missing,
            ),
            (
                -705,
                PutOutcome::AlreadyThere,
                GetOutcome::Failed(-705),
                RemoveOutcome::Failed(-705),
            ),
            (
                -706,
                PutOutcome::Failed(-706),
                GetOutcome::Failed(-706),
                RemoveOutcome::Leased,
            ),
            (
                -707,
                PutOutcome::Failed(-707),
                GetOutcome::Failed(code::LEASE_EXPIRED),
                RemoveOutcome::Failed(-707),
            ),
            (
                -1,
                PutOutcome::Failed(-1),
                GetOutcome::Failed(-1),
                RemoveOutcome::Failed(-1),
            ),
            (
                -800,
                PutOutcome::Failed(-800),
                GetOutcome::Failed(-800),
                RemoveOutcome::Failed(-800),
            ),
        ] {
            assert_eq!(put(code), put_is);
            assert_eq!(get(code.into(), 8), get_is);
            assert_eq!(remove(code), remove_is);
            assert_eq!(presence(code), Presence::Unknown(code));
            assert_eq!(is_outage(code), code == -800);
        }
        assert!(is_outage(-900) && is_outage(-901) && !is_outage(0));
    }

    #[test]
    fn success_is_said_once_per_call() {
        assert_eq!(presence(1), Presence::Present);
        assert_eq!(presence(0), Presence::Absent);
        assert_eq!(presence(2), Presence::Unknown(2));
        assert_eq!(put(0), PutOutcome::Stored);
        assert_eq!(put(1), PutOutcome::Failed(1));
        assert_eq!(remove(0), RemoveOutcome::Removed);
        assert_eq!(get(8, 8), GetOutcome::Landed(8));
        assert_eq!(get(7, 8), GetOutcome::WrongSize(7));
        assert_eq!(get(0, 8), GetOutcome::WrongSize(0));
        for word in [PutOutcome::Stored, PutOutcome::AlreadyThere] {
            assert!(is_provisional(word));
            assert_eq!(confirmed(word, Presence::Present), word);
            let absent = PutOutcome::Failed(code::BEING_WRITTEN);
            assert_eq!(confirmed(word, Presence::Absent), absent);
            let unknown = confirmed(word, Presence::Unknown(-900));
            assert_eq!(unknown, PutOutcome::Failed(-900));
        }
        assert!(!is_outage(code::BEING_WRITTEN) && !is_provisional(put(-200)));
        assert!(is_without_master(-900) && is_without_master(-901) && !is_without_master(-800));
        let silent = GetOutcome::Failed(code::NO_ANSWER);
        assert_eq!(get(i64::MIN, 8), silent);
        assert!(is_misfit(get(-600, 8)) && !is_misfit(silent));
    }
}
