//! One reader per kind of value. An error is the rest of a sentence that begins with the value.

use super::json::Value;
use super::{address, size};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The number formats that need no `custom:` in front.
const NUMBER_FORMATS: [&str; 10] = [
    "float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4", "mxfp8", "mxfp4",
    "int4",
];

fn is_not(value: &Value<'_>, wanted: impl Display) -> String {
    format!("is {}, not {wanted}", value.kind())
}

pub(super) fn text(value: &Value<'_>) -> Result<String, String> {
    match value {
        // Strings end up in C interfaces, where a NUL would cut them short.
        Value::String(text) if text.contains('\0') => Err("contains a NUL character".to_owned()),
        Value::String(text) => Ok(text.clone()),
        other => Err(is_not(other, "a string")),
    }
}

pub(super) fn filled(value: &Value<'_>) -> Result<String, String> {
    let text = text(value)?;
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(text)
}

pub(super) fn host_port(value: &Value<'_>) -> Result<String, String> {
    let text = text(value)?;
    address::check_host_port(&text)?;
    Ok(text)
}

/// An empty name is how Mooncake itself spells "none given".
pub(super) fn hostname(value: &Value<'_>) -> Result<String, String> {
    let text = text(value)?;
    if !text.is_empty() {
        address::check_host_maybe_port(&text)?;
    }
    Ok(text)
}

pub(super) fn boolean(value: &Value<'_>) -> Result<bool, String> {
    match value {
        Value::Bool(value) => Ok(*value),
        other => Err(is_not(other, "a JSON boolean (true or false, unquoted)")),
    }
}

/// A size: a JSON integer is read by the same rules as a string, so both refuse the same.
pub(super) fn bytes(value: &Value<'_>) -> Result<u64, String> {
    match value {
        Value::Number(text) => size::parse(text),
        Value::String(text) => size::parse(text),
        other => Err(is_not(other, "a size")),
    }
}

pub(super) fn some_bytes(value: &Value<'_>) -> Result<u64, String> {
    match bytes(value)? {
        0 => Err("must be above 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// An integer inside a range. A fraction and an exponent are refused even where they would be
/// whole, as for sizes.
pub(super) fn integer<'a, T>(
    range: RangeInclusive<T>,
) -> impl FnOnce(&Value<'a>) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + Display,
{
    move |value| {
        let wanted = format!("an integer from {} to {}", range.start(), range.end());
        match value {
            Value::Number(text) => text
                .parse()
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| format!("is not {wanted}")),
            other => Err(is_not(other, wanted)),
        }
    }
}

fn number(value: &Value<'_>) -> Result<f64, String> {
    match value {
        // What is too large for the type reads as infinite, and is refused by the callers' ranges.
        Value::Number(text) => text.parse().map_err(|_| "is not a number".to_owned()),
        other => Err(is_not(other, "a number")),
    }
}

pub(super) fn seconds(value: &Value<'_>) -> Result<f64, String> {
    let seconds = number(value)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(seconds),
        _ => Err("is not a finite number of seconds above 0".to_owned()),
    }
}

pub(super) fn ratio(value: &Value<'_>) -> Result<f64, String> {
    let ratio = number(value)?;
    if ratio > 0.0 && ratio <= 1.0 {
        Ok(ratio)
    } else {
        Err("is not a share above 0 and at most 1".to_owned())
    }
}

pub(super) fn choice<'a, T>(
    names: &'static [&'static str],
    from_name: fn(&str) -> Option<T>,
) -> impl FnOnce(&Value<'a>) -> Result<T, String> {
    move |value| {
        let text = text(value)?;
        from_name(&text).ok_or_else(|| format!("is none of {}", names.join(", ")))
    }
}

pub(super) fn number_format(value: &Value<'_>) -> Result<String, String> {
    let text = text(value)?;
    let custom = text
        .strip_prefix("custom:")
        .is_some_and(|name| !name.is_empty());
    if custom || NUMBER_FORMATS.contains(&text.as_str()) {
        Ok(text)
    } else {
        Err(format!(
            "is none of {}, custom:<text>",
            NUMBER_FORMATS.join(", ")
        ))
    }
}
