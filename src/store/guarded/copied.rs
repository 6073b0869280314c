//! Gets and puts of callers that only lend their memory: through memory of the call, with a copy.

use super::owned::Copies;
use super::{Get, Guarded, Made, Put};
use crate::device::memory::{Source, Target, write_over};
use crate::keys::Keys;
use crate::store::{GetOutcome, Pieces, PutOptions, PutOutcome, answer_all, code};

impl Guarded {
    /// A get into memory that is only lent: it lands in memory of the call and is copied.
    pub(super) fn get_copied(
        &self,
        keys: &Keys,
        mut targets: Pieces<'_, Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) {
        let fail = |out: &mut Vec<GetOutcome>, code| {
            answer_all(out, keys.len(), GetOutcome::Failed(code));
        };
        if !targets.fits(keys.len()) {
            return fail(out, code::MALFORMED_CALL);
        }
        let sizes = (0..keys.len()).map(|key| sum(targets.of(key).iter().map(Target::size)));
        let copies = match Copies::of(sizes) {
            Ok(copies) => copies,
            Err(code) => return fail(out, code),
        };
        let mut call = match self.get_owned(Get::new(keys.clone(), copies)) {
            Made::Back(call) => call,
            Made::Kept(code) => return fail(out, code),
        };
        if call.outcomes.len() == keys.len() {
            let mut bytes = call.buffers.bytes();
            let sizes = call.buffers.sizes().iter();
            for ((key, &size), outcome) in sizes.enumerate().zip(&mut call.outcomes) {
                let (object, later) = bytes.split_at(size.min(bytes.len()));
                bytes = later;
                let landed = matches!(outcome, GetOutcome::Landed(_));
                if landed && !write_over(object, targets.of(key)) {
                    *outcome = GetOutcome::Failed(code::UNREACHABLE_MEMORY);
                }
            }
        }
        out.clear();
        out.append(&mut call.outcomes);
    }

    /// A put from memory that is only lent: it is copied first.
    pub(super) fn put_copied(
        &self,
        keys: &Keys,
        mut sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let fail = |out: &mut Vec<PutOutcome>, code| {
            answer_all(out, keys.len(), PutOutcome::Failed(code));
        };
        if !sources.fits(keys.len()) {
            return fail(out, code::MALFORMED_CALL);
        }
        let sizes = (0..keys.len()).map(|key| sum(sources.of(key).iter().map(Source::size)));
        let mut copies = match Copies::of(sizes) {
            Ok(copies) => copies,
            Err(code) => return fail(out, code),
        };
        let mut rest = copies.bytes_mut();
        for key in 0..keys.len() {
            for piece in sources.of(key) {
                let Some(bytes) = piece.bytes() else {
                    return fail(out, code::UNREACHABLE_MEMORY);
                };
                let (place, later) = rest.split_at_mut(bytes.len().min(rest.len()));
                place.copy_from_slice(bytes.get(..place.len()).unwrap_or_default());
                rest = later;
            }
        }
        let mut call = Put::new(keys.clone(), copies);
        call.soft_pin_ttl = options.soft_pin_ttl;
        call.groups = options.groups.cloned();
        call.places = options.places.map(<[_]>::to_vec);
        match self.put_owned(call) {
            Made::Back(mut call) => {
                out.clear();
                out.append(&mut call.outcomes);
            }
            Made::Kept(code) => fail(out, code),
        }
    }
}

fn sum(mut sizes: impl Iterator<Item = u64>) -> Option<u64> {
    sizes.try_fold(0, u64::checked_add)
}
