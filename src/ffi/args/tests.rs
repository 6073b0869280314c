//! What the host may pass, and what is refused.

use super::*;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grown {
    struct_size: u32,
    first: u32,
    second: u64,
}
// SAFETY: C layout, integers.
unsafe impl Plain for Grown {}
// SAFETY: begins with its size.
unsafe impl Growable for Grown {}

const FULL: Grown = Grown {
    struct_size: 16,
    first: 1,
    second: 2,
};

fn with_size(struct_size: u32) -> Grown {
    Grown {
        struct_size,
        ..FULL
    }
}

fn refused<T>(result: Result<T>, kind: Kind, text: &str) {
    let error = result.err().unwrap();
    assert_eq!(error.kind(), kind);
    assert!(error.message().contains(text), "{error} lacks {text:?}");
}

#[test]
fn lists_are_checked_before_they_are_followed() {
    let numbers = [1_u32, 2, 3];
    let start = numbers.as_ptr();
    // SAFETY: valid, or refused or ignored before it is followed.
    unsafe {
        assert_eq!(list(start, 3, "ids").unwrap(), numbers);
        assert_eq!(list::<u32>(ptr::null(), 0, "ids").unwrap(), [0; 0]);
        assert_eq!(list(start.wrapping_byte_add(1), 0, "ids").unwrap(), [0; 0]);
        refused(
            list::<u32>(ptr::null(), 1, "ids"),
            Kind::NullPointer,
            "ids is NULL",
        );
        refused(
            list(start.wrapping_byte_add(1), 1, "ids"),
            Kind::InvalidArgument,
            "not aligned to 4",
        );
        for count in [usize::MAX, usize::MAX / 4, isize::MAX as usize / 4 + 1] {
            refused(
                list(start, count, "ids"),
                Kind::InvalidArgument,
                "more than memory",
            );
        }
        refused(
            text(b"ab\xff".as_ptr(), 3, "path"),
            Kind::InvalidArgument,
            "UTF-8 at byte 2",
        );
    }
}

#[test]
fn structs_of_other_versions_are_read() {
    // SAFETY: each is as long as it says or longer.
    unsafe {
        assert_eq!(growable(&FULL, "it").unwrap(), FULL);
        let shorter = with_size(8);
        assert_eq!(
            growable(&shorter, "it").unwrap(),
            Grown {
                second: 0,
                ..shorter
            }
        );
        let longer = [with_size(32), with_size(0)];
        assert_eq!(growable(longer.as_ptr(), "it").unwrap(), longer[0]);
        for size in [0, 1, 3] {
            refused(
                growable(&with_size(size), "it"),
                Kind::InvalidArgument,
                "struct_size",
            );
        }
        refused(
            growable::<Grown>(ptr::null(), "it"),
            Kind::NullPointer,
            "it is NULL",
        );
    }
}

#[test]
fn structs_of_other_versions_are_written() {
    // SAFETY: each is as long as it says or longer.
    unsafe {
        let mut it = Grown {
            struct_size: 8,
            first: 0,
            second: 0,
        };
        out_growable(&mut it, "it").unwrap().write(&FULL);
        assert_eq!(
            it,
            Grown {
                struct_size: 8,
                first: 1,
                second: 0
            }
        );
        let mut it = [Grown {
            struct_size: 32,
            first: 0,
            second: 0,
        }; 2];
        out_growable(it.as_mut_ptr(), "it").unwrap().write(&FULL);
        assert_eq!(it[0], with_size(32));
        assert_eq!(it[1].first, 0);
        let mut it = with_size(4);
        out_growable(&mut it, "it").unwrap().write(&with_size(0));
        assert_eq!(it, with_size(4));
        refused(
            out_growable(&mut with_size(0), "it"),
            Kind::InvalidArgument,
            "struct_size",
        );
    }
}

#[test]
fn buffers_say_what_they_need_and_are_written_whole_or_not_at_all() {
    let mut bytes = [7_u8; 4];
    let mut needed = 0;
    // SAFETY: the arrays are as long as said.
    unsafe {
        let short = buffer(bytes.as_mut_ptr(), 3, &mut needed)
            .unwrap()
            .text("abc");
        refused(short, Kind::TooSmall, "4 are needed");
        assert_eq!((bytes, needed), ([7; 4], 4));
        buffer(bytes.as_mut_ptr(), 4, &mut needed)
            .unwrap()
            .text("abc")
            .unwrap();
        assert_eq!((&bytes, needed), (b"abc\0", 4));
        let asked = buffer(ptr::null_mut(), 0, &mut needed)
            .unwrap()
            .bytes(b"ab");
        refused(asked, Kind::TooSmall, "2 are needed");
        assert_eq!(needed, 2);
        buffer(ptr::null_mut(), 0, &mut needed)
            .unwrap()
            .bytes(b"")
            .unwrap();
        refused(
            buffer(ptr::null_mut(), 1, &mut needed),
            Kind::NullPointer,
            "buffer",
        );
        refused(
            buffer(bytes.as_mut_ptr(), 4, ptr::null_mut()),
            Kind::NullPointer,
            "out_needed",
        );
    }
}

#[test]
fn flags_and_choices_are_checked() {
    assert!(!flag(0, "f").unwrap() && flag(1, "f").unwrap());
    refused(flag(2, "media"), Kind::InvalidArgument, "media is 2");
    let known = [(0, 'a'), (-1, 'b')];
    assert_eq!(choice(-1, &known, "kind").unwrap(), 'b');
    refused(
        choice(1, &known, "kind"),
        Kind::InvalidArgument,
        "kind is 1",
    );
}
