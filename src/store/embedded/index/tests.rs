//! Names come back as they were, and entries leave nothing behind.

use super::*;

fn digest(key: &str) -> (Vec<u8>, u8) {
    let (prefix, width) = split(key.as_bytes(), &mut [0; DIGEST]);
    (prefix.to_vec(), width)
}

#[test]
fn only_lower_case_digests_behind_a_slash_are_taken_apart() {
    let short = "0123456789abcdef0123456789abcdef";
    let long = format!("{short}{short}");
    assert_eq!(digest(&format!("a/b/{short}")), (b"a/b".to_vec(), 16));
    assert_eq!(digest(&format!("a/b/{long}")), (b"a/b".to_vec(), 32));
    assert_eq!(digest(&format!("/{short}")), (Vec::new(), 16));
    for whole in [
        "".to_owned(),
        "a".to_owned(),
        short.to_owned(),
        long.clone(),
        format!("a/{}", short.to_uppercase()),
        format!("a/{short}0"),
        format!("a/g{}", &short[1..]),
        format!("a-{short}"),
    ] {
        assert_eq!(digest(&whole), (whole.clone().into_bytes(), 0));
    }
}

#[test]
fn names_that_share_a_digest_are_different_keys() {
    let short = "0".repeat(32);
    let long = "0".repeat(64);
    let keys = [
        format!("a/{short}"),
        format!("b/{short}"),
        format!("a/{long}"),
        format!("a/{short}/{short}"),
        "a".to_owned(),
        short.clone(),
        String::new(),
    ];
    let mut index = Index::new();
    let mut entries = Vec::new();
    for key in &keys {
        assert!(index.find(key.as_bytes()).is_none(), "{key}");
        entries.push(index.begin(key.as_bytes()).unwrap());
    }
    for (key, entry) in keys.iter().zip(&entries) {
        assert_eq!(index.find(key.as_bytes()).unwrap().entry, *entry);
    }
    assert_eq!(index.space_count(), keys.len());
    for entry in entries {
        index.abandon(entry);
    }
    assert_eq!((index.space_count(), index.table.len()), (0, 0));
}

#[test]
fn a_hash_that_collides_is_not_a_match() {
    let mut index = Index::new();
    let key = format!("a/{}", "0".repeat(32));
    let other = format!("a/{}1", "0".repeat(31));
    let entry = index.begin(key.as_bytes()).unwrap();
    let name = {
        let mut digest = [0; DIGEST];
        let (prefix, width) = split(other.as_bytes(), &mut digest);
        let space = index.spaces.find(prefix, width).unwrap();
        Name { digest, space }
    };
    // Files the first key's slot under the second key's hash.
    let found = index
        .table
        .find_entry(index.entries[entry as usize].hash, |s| s.entry == entry);
    let (slot, _) = found.unwrap().remove();
    index
        .table
        .insert_unique(name.hash(), slot, |s| s.name.hash());
    assert!(index.find(other.as_bytes()).is_none());
}

#[test]
fn spaces_that_come_and_go_leave_nothing_behind() {
    let mut index = Index::new();
    for round in 0..1000 {
        let entry = index.begin(format!("session {round}").as_bytes()).unwrap();
        index.abandon(entry);
    }
    assert_eq!(index.space_count(), 0);
    assert!(index.spaces.places() <= 1 && index.entries.len() <= 1);
}
