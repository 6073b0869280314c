use super::codec::TRAILER;
use super::*;
use crate::error::Kind;
use crate::page::crc64;

fn example() -> Metadata {
    let recycler = Arc::new(Recycler::default());
    let mut metadata = recycler.metadata(7, [9; 16], 16);
    metadata.set_groups([0, 3].into_iter());
    metadata.loads_mut().begin_run(1, 10, 2, &[5; 16]);
    metadata
        .loads_mut()
        .push_block(&[6; 16], [1, 2].into_iter());
    metadata
        .loads_mut()
        .push_block(&[7; 16], [3, -1].into_iter());
    metadata.saves_mut().begin_run(2, 11, 0, &[8; 16]);
    metadata
        .saves_mut()
        .push_block(&[9; 16], [4, 5].into_iter());
    metadata.parked_mut().begin_run(3, 12, 4, &[1; 16]);
    metadata.parked_mut().begin_run(4, 13, 1, &[2; 16]);
    metadata.parked_mut().set_ticket(77);
    metadata
        .parked_mut()
        .push_block(&[3; 16], [6, 7].into_iter());
    metadata.set_ended([(5, 14), (6, 15)].into_iter());
    metadata
}

fn encoded(metadata: &Metadata) -> Vec<u8> {
    let mut bytes = Vec::new();
    metadata.encode(&mut bytes);
    bytes
}

#[test]
fn decoding_restores_what_was_encoded() {
    let metadata = example();
    let bytes = encoded(&metadata);
    assert_eq!(bytes.len(), metadata.encoded_size());
    let decoded = Metadata::decode(&bytes).unwrap();
    assert_eq!(decoded, metadata);
    let loads: Vec<_> = decoded.views(decoded.loads()).collect();
    assert_eq!(
        (loads[0].run.first_block, loads[0].pages),
        (2, &[1, 2, 3, -1][..])
    );
    assert_eq!(&loads[0].hashes[16..], &[7; 16]);
    let block = loads[0].block(1).unwrap();
    assert_eq!(
        (block.ordinal, block.hash, block.pages),
        (3, &[7; 16][..], &[3, -1][..])
    );
    assert!(loads[0].block(2).is_none());
    let parked: Vec<_> = decoded.views(decoded.parked()).collect();
    assert_eq!((parked[0].run.blocks, parked[0].pages), (0, &[][..]));
    assert_eq!(
        (parked[1].run.life(), parked[1].pages),
        ((4, 13), &[6, 7][..])
    );
    assert_eq!((parked[0].run.ticket, parked[1].run.ticket), (3, 77));
    assert_eq!(decoded.ended(), [(5, 14), (6, 15)]);
    assert_eq!(decoded.runs().count(), 4);
}

#[test]
fn case_76_damaged_bytes_are_a_status() {
    let bytes = encoded(&example());
    for length in 0..bytes.len() {
        let error = Metadata::decode(&bytes[..length]).unwrap_err();
        assert_eq!(error.kind(), Kind::Malformed, "cut to {length}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Metadata::decode(&damaged).is_err(), "bit {bit}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Metadata::decode(&longer).is_err());
}

/// Damage that a checksum cannot see: whoever wrote these bytes summed them too.
#[test]
fn consistent_lies_are_a_status() {
    let bytes = encoded(&example());
    let body = bytes.len() - TRAILER;
    for position in 0..body {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut lie = bytes.clone();
            lie[position] = value;
            let sum = crc64(&lie[..body]);
            lie[body..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(metadata) = Metadata::decode(&lie) {
                for transfers in metadata.lists.transfers() {
                    assert_eq!(metadata.views(transfers).count(), transfers.runs().len());
                }
            }
        }
    }
}

#[test]
fn lists_come_back_to_the_recycler() {
    let recycler = Arc::new(Recycler::default());
    let mut metadata = recycler.metadata(1, [0; 16], 32);
    metadata.saves_mut().begin_run(1, 1, 0, &[0; 32]);
    metadata.saves_mut().push_block(&[1; 32], [7].into_iter());
    let list = metadata.saves().hashes.as_ptr();
    drop(metadata);
    let again = recycler.metadata(2, [0; 16], 32);
    assert_eq!(again.saves().blocks(), 0);
    assert_eq!(again.saves().hashes.as_ptr(), list);
}
