//! Against bytes that real masters took and gave, and against bytes of any kind.

use proptest::prelude::*;

use super::{Answer, Flaw, Pack, Request, Text, Unpack, Uuid, code, pack, unpack};
use crate::store::wire::family::Family;
use crate::store::wire::messages::{
    ALL_REPLICAS, Buffer, COMPLETE, Exist, FetchTasks, InMemory, Locate, Mount, NEEDS_REMOUNT, PIN,
    Ping, Place, Pong, PutEnd, PutRevoke, PutStart, Remount, Remove, Replica, Replicas,
    ReplicateConfig, Segment, ServiceReady, Stage, Staged, TASK_FAILED, Task, TaskDone, TaskEnded,
    Unmount, Unstage, Written,
};

const RECORDED: &str = include_str!("../../../../tests/vectors/wire_messages.txt");
const CLIENT: Uuid = Uuid(0x1122_3344_5566_7788, 9);
const OWNER: &str = "127.0.0.1:7777";

struct Exchange {
    family: Family,
    method: &'static str,
    function: u32,
    arguments: Vec<u8>,
    answer: Vec<u8>,
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex = hex.trim_start_matches('-');
    let mut bytes = vec![0; hex.len() / 2];
    faster_hex::hex_decode(hex.as_bytes(), &mut bytes).unwrap();
    bytes
}

/// The exchanges of one version, in their order.
fn recorded(version: &str) -> impl Iterator<Item = Exchange> {
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
    let version = version.to_owned();
    lines.filter_map(move |line| {
        let [of, method, function, arguments, answer] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        (of == version).then(|| Exchange {
            family: match of {
                "0.3.12" => Family::V0_3_12,
                _ => Family::V0_3_13,
            },
            method,
            function: u32::from_str_radix(function, 16).unwrap(),
            arguments: bytes(arguments),
            answer: bytes(answer),
        })
    })
}

/// The next exchange is this call, and its answer `expected`, compared as text: types that borrow from the answer
/// have no name here.
fn expect<R: Request>(
    exchanges: &mut impl Iterator<Item = Exchange>,
    request: &R,
    expected: &dyn std::fmt::Debug,
) where
    for<'m> R::Reply<'m>: std::fmt::Debug,
{
    let exchange = exchanges.next().unwrap();
    assert_eq!(exchange.method, R::METHOD);
    assert_eq!(exchange.function, R::function_id(), "{}", R::METHOD);
    let mut packed = Vec::new();
    request.pack(exchange.family, &mut packed);
    assert!(packed == exchange.arguments, "{} {packed:02x?}", R::METHOD);
    let found: R::Reply<'_> = unpack(&exchange.answer, exchange.family).unwrap();
    assert_eq!(
        format!("{found:?}"),
        format!("{expected:?}"),
        "{}",
        R::METHOD
    );
}

fn replica(id: u64, address: u64, size: u64, status: i32) -> Replica<'static> {
    let buffer = Buffer {
        size,
        address,
        protocol: "tcp".into(),
        endpoint: OWNER.into(),
    };
    Replica {
        id,
        place: Place::Memory(InMemory { buffer }),
        status,
    }
}

fn ok<T>(value: T) -> Answer<T> {
    Ok(value)
}

fn err(number: i32) -> Answer<()> {
    Err(number)
}

/// `staged`: where the objects were then, at which endpoint.
fn exchanges_are_as_recorded(version: &str, staged: [u64; 2], endpoint: &str) {
    let exchanges = &mut recorded(version);
    let tenant = Text::from("default");
    let segment = Segment {
        id: Uuid(3, 4),
        name: OWNER.into(),
        base: 0x2_0000_0000,
        size: 64 << 20,
        endpoint: OWNER.into(),
        protocol: "tcp".into(),
        host_id: "".into(),
    };
    let names: Vec<String> = (0..300).map(|number| format!("k{number}")).collect();
    let many: Vec<Text<'_>> = names.iter().map(|name| Text::from(&name[..])).collect();
    let [a, b, c] = ["a", "b", "c"].map(Text::from);
    let plain = ReplicateConfig {
        replicas: 1,
        ..ReplicateConfig::default()
    };
    let full = ReplicateConfig {
        soft_pin: true,
        soft_pin_action: PIN,
        soft_pin_ttl_ms: Some(60_000),
        preferred_segments: vec![OWNER.into()],
        groups: Some(vec!["g".into(), "h".into()]),
        ..plain.clone()
    };
    let client = CLIENT;

    expect(exchanges, &ServiceReady {}, &ok(Text::from("2.0.0")));
    let pong = |status| ok(Pong { view: 0, status });
    expect(exchanges, &Ping { client }, &pong(NEEDS_REMOUNT));
    let mount = Mount {
        segment: segment.clone(),
        client,
    };
    expect(exchanges, &mount, &ok(()));
    let segments = vec![segment];
    expect(exchanges, &Remount { segments, client }, &ok(()));
    let mut start = PutStart {
        client,
        keys: &[a, b],
        sizes: &[4096, 8192],
        config: full,
        tenant,
    };
    let first = replica(1, 0x2_0000_0000, 4096, 2);
    let second = replica(2, 0x2_0000_1000, 8192, 2);
    let started = [ok([first]), Ok([second])];
    expect(exchanges, &start, &started);
    let first = [a];
    (start.keys, start.sizes, start.config) = (&first, &[4096], plain);
    expect(exchanges, &start, &[err(-705)]);
    let end = PutEnd {
        client,
        keys: &[a],
        written: &[Written {
            key: a,
            checksum: None,
        }],
        replicas: ALL_REPLICAS,
        tenant,
    };
    expect(exchanges, &end, &[ok(())]);
    let revoke = PutRevoke {
        client,
        keys: &[b, c],
        replicas: ALL_REPLICAS,
        tenant,
    };
    expect(exchanges, &revoke, &[ok(()), Err(-704)]);
    let both = [a, b];
    let exist = |keys| Exist { keys, tenant };
    expect(exchanges, &exist(&both), &[ok(true), Ok(false)]);
    expect(exchanges, &exist(&many), &[ok(false); 300]);
    let keys = &both;
    let replicas = Replicas {
        replicas: vec![replica(1, 0x2_0000_0000, 4096, COMPLETE)],
        lease_ms: 10_000,
        checksum: None,
    };
    let located = [ok(replicas), Err(-704)];
    expect(exchanges, &Locate { keys, tenant }, &located);
    let remove = Remove {
        keys,
        force: true,
        tenant,
    };
    expect(exchanges, &remove, &[ok(()), Err(-704)]);
    expect(exchanges, &Ping { client }, &pong(1));
    let fetch = FetchTasks { client, most: 8 };
    expect(exchanges, &fetch, &ok([(); 0]));
    let done = TaskDone {
        id: Uuid(5, 6),
        status: TASK_FAILED,
        message: "not here".into(),
    };
    expect(exchanges, &TaskEnded { client, done }, &err(-1400));
    let segment = Uuid(3, 4);
    expect(exchanges, &Unmount { segment, client }, &ok(()));

    let [a, b, none] = ["default\0a", "default\0b", "default\0none"].map(Text::from);
    let (both, other) = ([a, b], [a, none]);
    let mut stage = Stage {
        keys: &both,
        sizes: &[4096, 8192],
    };
    let staged = Staged {
        batch: 1,
        addresses: staged.to_vec(),
        endpoint: Text::from(endpoint),
        ttl_ms: 5000,
    };
    expect(exchanges, &stage, &ok(staged));
    stage.keys = &other;
    expect(exchanges, &stage, &err(-400));
    expect(exchanges, &Unstage { batch: 1 }, &true);
    expect(exchanges, &Unstage { batch: 77 }, &false);
    assert!(exchanges.next().is_none());
}

#[test]
fn masters_of_0_3_12_are_spoken_to_as_recorded() {
    exchanges_are_as_recorded(
        "0.3.12",
        [0x7fe5_c7ff_f000, 0x7fe5_c800_2000],
        "127.0.0.1:15416",
    );
}

#[test]
fn masters_of_0_3_13_are_spoken_to_as_recorded() {
    exchanges_are_as_recorded(
        "0.3.13",
        [0x7f54_2bff_f000, 0x7f54_2c00_0000],
        "127.0.0.1:15415",
    );
}

#[test]
fn masters_of_0_3_14_are_spoken_to_as_recorded() {
    exchanges_are_as_recorded(
        "0.3.14",
        [0x7f04_a03f_5000, 0x7f04_a03f_6000],
        "127.0.0.1:16120",
    );
}

#[test]
fn versions_do_not_understand_each_other() {
    let [new, old] = Family::ALL;
    assert_ne!(PutStart::code(new), PutStart::code(old));
    assert_ne!(PutEnd::code(new), PutEnd::code(old));
    let mut packed = Vec::new();
    pack(&vec![ok(Replicas::default())], old, &mut packed);
    let flaw = unpack::<Vec<Answer<Replicas<'_>>>>(&packed, new).unwrap_err();
    let wanted = code::<Vec<Answer<Replicas<'_>>>>(new);
    assert!(matches!(flaw, Flaw::Type { wanted: w, .. } if w == wanted));
}

#[test]
fn lengths_take_as_many_bytes_as_the_longest_needs() {
    for (length, width) in [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)] {
        let text = vec![b'x'; length];
        let mut packed = Vec::new();
        pack(&Text(&text), Family::ALL[0], &mut packed);
        let metadata = usize::from(width > 1);
        assert_eq!(packed.len(), 4 + metadata + width + length, "{length}");
        assert_eq!(unpack(&packed, Family::ALL[0]), Ok(Text(&text)));
    }
}

#[test]
fn impossible_messages_are_named() {
    let family = Family::ALL[0];
    let head = code::<Vec<Answer<bool>>>(family).to_le_bytes();
    let with = |rest: &[u8]| [&head[..], rest].concat();
    let marked = |rest: &[u8]| [&[head[0] | 1], &head[1..], rest].concat();
    for (message, flaw) in [
        (vec![], Flaw::Short),
        (with(&[]), Flaw::Short),
        (with(&[1, 1]), Flaw::Short),
        (with(&[1, 1, 2]), Flaw::Choice),
        (with(&[1, 2, 0]), Flaw::Choice),
        (with(&[2, 1]), Flaw::Length),
        (with(&[1, 1, 0, 0]), Flaw::Long),
        // Lengths of eight bytes.
        (
            marked(&[0x18, 255, 255, 255, 255, 255, 255, 255, 255]),
            Flaw::Length,
        ),
        // A literal without an end.
        (marked(&[4, 65, 66]), Flaw::Short),
        // Its own length.
        (marked(&[1, 9, 0, 0]), Flaw::Total),
    ] {
        assert_eq!(
            unpack::<Vec<Answer<bool>>>(&message, family),
            Err(flaw),
            "{message:?}"
        );
    }
    // What stands behind is an addition of a later version, if the message says its length.
    let added = marked(&[1, 10, 0, 1, 1, 1]);
    assert_eq!(added.len(), 10);
    assert_eq!(unpack(&added, family), Ok(vec![Ok(true)]));
}

/// Reads them as every kind of answer, with the right type code in front or not.
fn read_as_anything(family: Family, message: &[u8]) {
    fn one<'m, T: Unpack<'m>>(family: Family, message: &'m [u8]) {
        let _ = unpack::<T>(message, family);
    }
    one::<Vec<Answer<bool>>>(family, message);
    one::<Vec<Answer<()>>>(family, message);
    one::<Vec<Answer<Replicas<'_>>>>(family, message);
    one::<Vec<Answer<Vec<Replica<'_>>>>>(family, message);
    one::<Answer<Vec<Task<'_>>>>(family, message);
    one::<Answer<Pong>>(family, message);
    one::<Text<'_>>(family, message);
    one::<ReplicateConfig<'_>>(family, message);
    one::<Answer<Staged<'_>>>(family, message);
}

/// A message of this type with these bytes behind the code.
fn headed<T: Pack>(family: Family, metadata: Option<u8>, rest: &[u8]) -> Vec<u8> {
    let head = code::<T>(family) | u32::from(metadata.is_some());
    let metadata = metadata.into_iter().collect();
    [head.to_le_bytes().to_vec(), metadata, rest.to_vec()].concat()
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_an_end(
        newest in any::<bool>(),
        metadata in proptest::option::of(any::<u8>()),
        rest in proptest::collection::vec(prop_oneof![4 => 0_u8..4, 1 => any::<u8>()], 0..200),
    ) {
        let family = Family::ALL[usize::from(!newest)];
        read_as_anything(family, &rest);
        read_as_anything(family, &headed::<Vec<Answer<Replicas<'_>>>>(family, metadata, &rest));
        read_as_anything(family, &headed::<Vec<Answer<Vec<Replica<'_>>>>>(family, metadata, &rest));
        read_as_anything(family, &headed::<Answer<Vec<Task<'_>>>>(family, metadata, &rest));
        read_as_anything(family, &headed::<ReplicateConfig<'_>>(family, metadata, &rest));
        read_as_anything(family, &headed::<Answer<Staged<'_>>>(family, metadata, &rest));
    }

    #[test]
    fn a_list_never_has_more_items_than_its_message_has_bytes(
        claimed in any::<u64>(),
        rest in proptest::collection::vec(0_u8..2, 0..100),
    ) {
        let family = Family::ALL[0];
        let message = [&claimed.to_le_bytes()[..], &rest].concat();
        let message = headed::<Vec<Answer<()>>>(family, Some(0x18), &message);
        if let Ok(list) = unpack::<Vec<Answer<()>>>(&message, family) {
            prop_assert!(list.len() <= rest.len() && list.capacity() <= 2 * rest.len().max(8));
        }
    }

    #[test]
    fn recorded_answers_with_changed_bytes_are_read_to_an_end(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let all: Vec<Exchange> = ["0.3.12", "0.3.13", "0.3.14"].into_iter().flat_map(recorded).collect();
        let exchange = which.get(&all);
        let mut answer = exchange.answer.clone();
        let at = at.index(answer.len());
        answer[at] = byte;
        read_as_anything(exchange.family, &answer);
        read_as_anything(exchange.family, &answer[..at]);
    }

    #[test]
    fn what_is_written_is_read(
        newest in any::<bool>(),
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20),
        number in any::<u64>(),
        flag in any::<bool>(),
    ) {
        let family = Family::ALL[usize::from(!newest)];
        let texts: Vec<Text<'_>> = texts.iter().map(|text| Text(text)).collect();
        let newer = family >= Family::V0_3_13;
        let config = ReplicateConfig {
            replicas: number,
            soft_pin: flag && !newer,
            soft_pin_ttl_ms: (flag && newer).then_some(number),
            preferred_segment: texts.first().copied().unwrap_or_default(),
            groups: flag.then(|| texts.clone()),
            ..ReplicateConfig::default()
        };
        let mut packed = Vec::new();
        pack(&config, family, &mut packed);
        prop_assert_eq!(unpack::<ReplicateConfig<'_>>(&packed, family), Ok(config));
    }
}
