//! What a master of Mooncake's sends, and an owner of a disk.

#![no_main]

use kvbridge::store::wire::family::Family;
use kvbridge::store::wire::messages::{Pong, Replica, Replicas, Staged, Task};
use kvbridge::store::wire::pack::{Answer, Pack, Text, Unpack, code, pack, unpack};
use kvbridge::store::wire::rpc;
use kvbridge_fuzz::edge::Fenced;
use libfuzzer_sys::fuzz_target;

/// Reads the bytes as they are, and behind the type code that nobody would guess.
fn read<'m, T: Unpack<'m> + Pack + PartialEq + std::fmt::Debug>(
    family: Family,
    bytes: &'m [u8],
    [coded, packed]: &'m mut [Vec<u8>; 2],
) {
    if let Ok(value) = unpack::<T>(bytes, family) {
        let mut packed = Vec::new();
        pack(&value, family, &mut packed);
        assert!(packed.len() <= bytes.len() + 8, "more than was sent");
    }
    let (metadata, rest) = bytes.split_first().unwrap_or((&0, &[]));
    coded.extend((code::<T>(family) | u32::from(metadata & 1)).to_le_bytes());
    if metadata & 1 == 1 {
        coded.push(metadata >> 1);
    }
    coded.extend(rest);
    if let Ok(value) = unpack::<T>(coded, family) {
        pack(&value, family, packed);
        let again: T = unpack(packed, family).expect("what was written is read");
        assert_eq!(again, value);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut memory = Fenced::new(data.len());
    let bytes = memory.put(data);
    if let Ok(Some(heard)) = rpc::heard(bytes) {
        let cut = &bytes[..heard.length - 1];
        assert!(matches!(rpc::heard(cut), Ok(None)), "a byte is missing");
    }
    for family in Family::ALL {
        read::<Vec<Answer<bool>>>(family, bytes, &mut Default::default());
        read::<Vec<Answer<()>>>(family, bytes, &mut Default::default());
        read::<Vec<Answer<Replicas<'_>>>>(family, bytes, &mut Default::default());
        read::<Vec<Answer<Vec<Replica<'_>>>>>(family, bytes, &mut Default::default());
        read::<Answer<Vec<Task<'_>>>>(family, bytes, &mut Default::default());
        read::<Answer<Pong>>(family, bytes, &mut Default::default());
        read::<Answer<Staged<'_>>>(family, bytes, &mut Default::default());
        read::<bool>(family, bytes, &mut Default::default());
        read::<Text<'_>>(family, bytes, &mut Default::default());
    }
});
