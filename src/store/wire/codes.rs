//! What becomes of a call that the pool did not answer, or not all of it.

use super::rpc::Failure;
use crate::store::code;

/// The code of every key that a failed call left without an answer.
pub fn of(failure: &Failure) -> i32 {
    match failure {
        Failure::Deadline => code::DEADLINE,
        Failure::Lost(_) => code::UNREACHABLE,
        Failure::Nonsense(_) => code::BAD_ANSWER,
        Failure::Refused(_) => code::UNSUPPORTED_CALL,
    }
}

/// The code of what came from a lender of memory. One that cannot be reached is left alone by itself: it is no outage of the
/// pool, whose other pages are there.
pub fn of_lender(number: i32) -> i32 {
    match number {
        code::UNREACHABLE | code::BAD_ANSWER | code::NO_ANSWER | code::UNSUPPORTED_CALL => {
            code::LENDER_LOST
        }
        other => other,
    }
}

/// The master's error number, to be reported. Its errors are negative; what is none, zero before all, would be taken for
/// success where a number says both.
pub fn said(number: i32) -> i32 {
    match number {
        ..0 => number,
        0.. => code::BAD_ANSWER,
    }
}

/// Whether a code says that the pool cannot be reached or cannot be spoken with.
pub fn is_outage(number: i32) -> bool {
    matches!(
        number,
        code::DEADLINE
            | code::UNREACHABLE
            | code::BAD_ANSWER
            | code::NO_ANSWER
            | code::UNSUPPORTED_CALL
    )
}
