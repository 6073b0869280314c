//! Sizes as text: a count of bytes, or a decimal number with a binary unit.
//!
//! The arithmetic is exact: a fraction is doubled digit by digit, never turned into a float, so
//! whether `"0.1GiB"` is a whole number of bytes has one answer on every machine.

/// The units, each as the power of two it stands for.
const UNITS: [(&str, u32); 5] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

/// Reads a size. The error is the rest of a sentence that begins with the value.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim_matches(is_blank);
    if text.is_empty() {
        return Err("is empty, not a size".to_owned());
    }
    if text.starts_with('-') {
        return Err("is negative, not a size".to_owned());
    }
    let (digits, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let (fraction, rest) = split_digits(rest);
            (Some(fraction), rest)
        }
        None => (None, rest),
    };
    if digits.is_empty() || fraction.is_some_and(str::is_empty) {
        return Err(
            "is not a size: a number of bytes, or a number with B, KiB, MiB, GiB or \
                    TiB, with digits before and behind a decimal point"
                .to_owned(),
        );
    }
    let unit = rest.trim_start_matches(is_blank);
    let shift = if unit.is_empty() {
        if fraction.is_some() {
            return Err(
                "has a fraction of a byte: without a unit a size is whole bytes".to_owned(),
            );
        }
        0
    } else {
        let number = &text[..text.len() - rest.len()];
        unit_shift(number, unit)?
    };
    scale(digits, fraction.unwrap_or(""), shift)
}

/// The digits of `text` up to its first other character, and what follows.
fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

/// The power of two of a unit; `number` is repeated in the hint.
fn unit_shift(number: &str, unit: &str) -> Result<u32, String> {
    for (name, shift) in UNITS {
        if unit.eq_ignore_ascii_case(name) {
            return Ok(shift);
        }
    }
    for (name, _) in UNITS.iter().skip(1) {
        // GB and G are read as both powers; Gi is clear but not in the list of spellings.
        let Some(letter) = name.get(..1) else {
            continue;
        };
        let tail = unit
            .get(..1)
            .filter(|first| first.eq_ignore_ascii_case(letter))
            .and_then(|_| unit.get(1..));
        match tail {
            Some("" | "b" | "B") => {
                return Err(format!(
                    "is ambiguous: some engines read {unit} as a power of 1000, others of 1024; \
                     write \"{number}{name}\" for powers of 1024, or the number of bytes"
                ));
            }
            Some("i" | "I") => {
                return Err(format!("has an unknown unit: write \"{number}{name}\""));
            }
            _ => {}
        }
    }
    // Not EB and EiB.
    if unit.starts_with(['e', 'E']) && !unit.ends_with(['b', 'B']) {
        return Err("has an exponent: write the number of bytes in full, or a unit".to_owned());
    }
    if unit.starts_with('%') {
        return Err("is a share: a size is a number of bytes".to_owned());
    }
    Err("has an unknown unit: B, KiB, MiB, GiB and TiB are known".to_owned())
}

/// `digits.fraction` times two to the power of `shift`, exactly.
fn scale(digits: &str, fraction: &str, shift: u32) -> Result<u64, String> {
    let too_large = || format!("is more than {} bytes", u64::MAX);
    // Only digits: what is left to fail is the range.
    let mut whole: u64 = digits.parse().map_err(|_| too_large())?;
    let mut fraction: Vec<u8> = fraction.bytes().map(|digit| digit - b'0').collect();
    for _ in 0..shift {
        let mut carry = 0;
        for digit in fraction.iter_mut().rev() {
            let doubled = *digit * 2 + carry;
            *digit = doubled % 10;
            carry = doubled / 10;
        }
        whole = whole
            .checked_mul(2)
            .and_then(|doubled| doubled.checked_add(u64::from(carry)))
            .ok_or_else(too_large)?;
    }
    if fraction.iter().any(|&digit| digit != 0) {
        return Err("has a fraction of a byte: the result must be whole bytes".to_owned());
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use proptest::prelude::*;

    #[test]
    fn accepted() {
        for (text, bytes) in [
            ("0", 0),
            ("007", 7),
            ("4096", 4096),
            (" 4096\t", 4096),
            ("1B", 1),
            ("1.0B", 1),
            ("4GiB", 4 << 30),
            (" 4 GiB ", 4 << 30),
            ("4\t gIb", 4 << 30),
            ("2kib", 2048),
            ("3MIB", 3 << 20),
            ("1.5GiB", 3 << 29),
            ("0.5KiB", 512),
            ("1.50000000000000000000000000000000000000000000000KiB", 1536),
            // The smallest fraction that is a whole byte: 2^-40.
            ("0.0000000000009094947017729282379150390625TiB", 1),
            ("3.125 GiB", 3_355_443_200),
            ("18446744073709551615", u64::MAX),
            (
                "16777215.9999999999990905052982270717620849609375TiB",
                u64::MAX,
            ),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn refused() {
        for (text, reason) in [
            ("", "empty"),
            (" \t", "empty"),
            ("-5", "negative"),
            ("-1GiB", "negative"),
            ("1.5", "fraction of a byte"),
            ("5.0", "fraction of a byte"),
            ("1.5B", "fraction of a byte"),
            ("0.1KiB", "fraction of a byte"),
            (
                "0.00000000000045474735088646411895751953125TiB",
                "fraction of a byte",
            ),
            ("1e9", "exponent"),
            ("1E9", "exponent"),
            ("1.5e3", "exponent"),
            ("50%", "share"),
            ("4GB", "write \"4GiB\""),
            ("4 gb", "write \"4GiB\""),
            ("1.5G", "write \"1.5GiB\""),
            ("7k", "write \"7KiB\""),
            ("7MB", "write \"7MiB\""),
            ("7T", "write \"7TiB\""),
            ("7Gi", "write \"7GiB\""),
            ("7PiB", "unknown unit"),
            ("7bytes", "unknown unit"),
            ("7é", "unknown unit"),
            ("7Gé", "unknown unit"),
            ("4 0GiB", "unknown unit"),
            ("1,5GiB", "unknown unit"),
            ("1_000", "unknown unit"),
            ("1.2.3GiB", "unknown unit"),
            ("0x10", "unknown unit"),
            (".5GiB", "not a size"),
            ("1.GiB", "not a size"),
            ("+5", "not a size"),
            ("GiB", "not a size"),
            ("NaN", "not a size"),
            ("inf", "not a size"),
            ("\u{661}", "not a size"),
            ("18446744073709551616", "more than 18446744073709551615"),
            ("16777216TiB", "more than 18446744073709551615"),
            (
                "99999999999999999999999999GiB",
                "more than 18446744073709551615",
            ),
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains(reason), "{text:?}: {refusal}");
        }
    }

    proptest! {
        #[test]
        fn whole_units_come_back(count in 0u64..1 << 23, unit in 0usize..5, blanks in "[ \t]{0,3}") {
            let (name, shift) = super::UNITS[unit];
            let text = format!("{blanks}{count}{blanks}{name}{blanks}");
            prop_assert_eq!(parse(&text), Ok(count << shift));
            prop_assert_eq!(parse(&text.to_lowercase()), Ok(count << shift));
        }

        #[test]
        fn byte_counts_come_back(bytes: u64) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
        }

        #[test]
        fn eighths_of_a_unit_come_back(eighths in 0u64..1 << 40, unit in 1usize..3) {
            let (name, shift) = super::UNITS[unit];
            let text = format!("{}.{:03}{name}", eighths / 8, eighths % 8 * 125);
            prop_assert_eq!(parse(&text), Ok((eighths << shift) / 8));
        }

        #[test]
        fn any_text_has_an_answer(text in ".*", number in "[0-9.]{0,60}[ kmgtibKMGTIB%eE+-]{0,4}") {
            let _ = parse(&text);
            let _ = parse(&number);
        }
    }
}
