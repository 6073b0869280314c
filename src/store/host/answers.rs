//! What a host wrote for a key becomes an outcome, or the code of a failure. The numbers are those
//! of the C interface; `ffi::host` holds them against its constants.

use crate::store::{GetOutcome, Presence, PutOutcome, RemoveOutcome, code};

/// Codes from here to -1 are the host's own.
const HOST_CODES: i32 = -19_999;
/// `KVB_PUT_FAILED`, `KVB_GET_FAILED` and `KVB_REMOVE_FAILED`.
const FAILED: i32 = 3;

type Answer<T> = Result<T, i32>;

/// The code of a number that is no success: the host's own, or one that is made for it.
pub(super) fn failure(number: i32) -> i32 {
    match number {
        HOST_CODES..=-1 => number,
        named if is_outage(named) => named,
        _ => code::HOST_FAILED,
    }
}

/// The pool, or a part of it, is away. Also what ended without an answer: a function that threw may
/// have left transfers behind.
pub(super) fn is_outage(code: i32) -> bool {
    matches!(
        code,
        code::UNREACHABLE | code::STILL_IN_USE | code::NO_ANSWER
    )
}

/// As [`failure`], for a key: there a number without meaning is a defect.
fn key_failure(number: i32) -> i32 {
    match (number, failure(number)) {
        (FAILED, code) => code,
        (_, code::HOST_FAILED) => code::BAD_ANSWER,
        (_, code) => code,
    }
}

pub(super) fn present(outcome: i32) -> Answer<Presence> {
    match outcome {
        0 => Ok(Presence::Absent),
        1 => Ok(Presence::Present),
        // KVB_UNKNOWN
        2 => Err(code::HOST_FAILED),
        FAILED => Err(code::BAD_ANSWER),
        other => Err(key_failure(other)),
    }
}

pub(super) fn stored(outcome: i32) -> Answer<PutOutcome> {
    match outcome {
        0 => Ok(PutOutcome::Stored),
        1 => Ok(PutOutcome::AlreadyThere),
        2 => Ok(PutOutcome::NoSpace),
        other => Err(key_failure(other)),
    }
}

/// `size` is what the host says, `wanted` what the pieces hold.
pub(super) fn got(outcome: i32, size: u64, wanted: u64) -> Answer<GetOutcome> {
    match outcome {
        0 if size == wanted => Ok(GetOutcome::Landed(size)),
        1 => Ok(GetOutcome::Missing),
        2 if size != wanted => Ok(GetOutcome::WrongSize(size)),
        // What contradicts itself is worth nothing.
        0 | 2 => Err(code::BAD_ANSWER),
        other => Err(key_failure(other)),
    }
}

pub(super) fn removed(outcome: i32) -> Answer<RemoveOutcome> {
    match outcome {
        0 => Ok(RemoveOutcome::Removed),
        1 => Ok(RemoveOutcome::Missing),
        2 => Ok(RemoveOutcome::Leased),
        other => Err(key_failure(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_what_the_header_says() {
        assert_eq!(present(0), Ok(Presence::Absent));
        assert_eq!(present(1), Ok(Presence::Present));
        assert_eq!(stored(0), Ok(PutOutcome::Stored));
        assert_eq!(stored(1), Ok(PutOutcome::AlreadyThere));
        assert_eq!(stored(2), Ok(PutOutcome::NoSpace));
        assert_eq!(got(0, 8, 8), Ok(GetOutcome::Landed(8)));
        assert_eq!(got(1, 0, 8), Ok(GetOutcome::Missing));
        assert_eq!(got(2, 9, 8), Ok(GetOutcome::WrongSize(9)));
        assert_eq!(removed(0), Ok(RemoveOutcome::Removed));
        assert_eq!(removed(1), Ok(RemoveOutcome::Missing));
        assert_eq!(removed(2), Ok(RemoveOutcome::Leased));
    }

    #[test]
    fn codes_pass_and_the_rest_is_a_failure() {
        let own = [-1, -600, HOST_CODES];
        let named = [code::UNREACHABLE, code::STILL_IN_USE, code::NO_ANSWER];
        for number in own.into_iter().chain(named) {
            assert_eq!(present(number), Err(number));
            assert_eq!(stored(number), Err(number));
            assert_eq!(got(number, 8, 8), Err(number));
            assert_eq!(removed(number), Err(number));
            assert_eq!(failure(number), number);
        }
        // What is the library's to say, and what nobody says.
        for number in [
            code::CLOSED,
            code::BREAKER_OPEN,
            -20_000,
            i32::MIN,
            4,
            i32::MAX,
        ] {
            assert_eq!(present(number), Err(code::BAD_ANSWER), "{number}");
            assert_eq!(stored(number), Err(code::BAD_ANSWER), "{number}");
            assert_eq!(got(number, 8, 8), Err(code::BAD_ANSWER), "{number}");
            assert_eq!(removed(number), Err(code::BAD_ANSWER), "{number}");
            assert_eq!(failure(number), code::HOST_FAILED, "{number}");
        }
        assert_eq!(present(2), Err(code::HOST_FAILED));
        assert_eq!(present(3), Err(code::BAD_ANSWER));
        assert_eq!(stored(3), Err(code::HOST_FAILED));
        assert_eq!(got(3, 0, 8), Err(code::HOST_FAILED));
        assert_eq!(removed(3), Err(code::HOST_FAILED));
    }

    #[test]
    fn sizes_must_fit_the_outcome() {
        for size in [0, 7, 9, u64::MAX] {
            assert_eq!(got(0, size, 8), Err(code::BAD_ANSWER));
        }
        assert_eq!(got(2, 8, 8), Err(code::BAD_ANSWER));
        assert_eq!(got(0, 0, 0), Ok(GetOutcome::Landed(0)));
    }
}
