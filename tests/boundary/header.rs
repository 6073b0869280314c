//! Reads the public header: its functions, structs and constants. It knows the few shapes that the
//! generated header has, and stops at any other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A parameter or a field.
pub struct Field {
    pub name: String,
    /// As in C, `const` included, with single spaces: `const kvb_bytes *`.
    pub c_type: String,
    pub doc: String,
    /// Bytes from the start of the struct; 0 for parameters.
    pub offset: usize,
}

pub struct Function {
    pub name: String,
    pub returns: String,
    pub doc: String,
    pub parameters: Vec<Field>,
}

pub struct Struct {
    pub fields: Vec<Field>,
    pub size: usize,
    pub align: usize,
}

impl Struct {
    pub fn grows(&self) -> bool {
        self.fields[0].name == "struct_size"
    }
}

#[derive(Default)]
pub struct Header {
    pub functions: Vec<Function>,
    pub structs: BTreeMap<String, Struct>,
    /// Types of which only pointers are known.
    pub handles: BTreeSet<String>,
    pub callbacks: BTreeSet<String>,
    pub constants: BTreeMap<String, i64>,
    /// The functions in the order of the plugin table.
    pub table: Vec<String>,
}

impl Header {
    pub fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvbridge/kvbridge.h");
        let text = std::fs::read_to_string(path).unwrap();
        let mut header = Self::default();
        let (mut rest, mut doc) = (text.as_str(), String::new());
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                return header;
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let (inside, after) = comment.split_once("*/").unwrap();
                (doc, rest) = (prose(inside), after);
            } else if rest.starts_with('#') {
                let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
                let words: Vec<_> = line.split(' ').collect();
                if let ["#define", name, value] = words[..] {
                    header
                        .constants
                        .insert(name.to_owned(), value.parse().unwrap());
                }
                rest = after;
            } else if let Some(after) = rest.strip_prefix("extern \"C\" {") {
                rest = after;
            } else if let Some(after) = rest.strip_prefix('}') {
                rest = after;
            } else {
                let end = statement(rest);
                header.item(&rest[..end], std::mem::take(&mut doc));
                rest = &rest[end + 1..];
            }
        }
    }

    fn item(&mut self, text: &str, doc: String) {
        if let Some(text) = text.strip_prefix("typedef struct ") {
            match text.split_once('{') {
                Some((name, body)) => {
                    let body = body.rsplit_once('}').unwrap().0;
                    self.structure(name.trim(), body);
                }
                None => {
                    let name = text.split(' ').next().unwrap();
                    self.handles.insert(name.to_owned());
                }
            }
        } else if let Some((_, name)) = text
            .strip_prefix("typedef void ")
            .or(text.strip_prefix("typedef int32_t "))
            .and_then(|text| text.split_once("(*"))
        {
            let name = name.split(')').next().unwrap();
            self.callbacks.insert(name.to_owned());
        } else if text.starts_with("typedef int32_t ") {
            // The status.
        } else {
            let (head, parameters) = text.split_once('(').unwrap();
            let parameters = parameters.strip_suffix(')').unwrap();
            let (returns, name) = declared(head);
            let parameters = match parameters {
                "void" => Vec::new(),
                some => some
                    .split(',')
                    .map(|text| {
                        let (c_type, name) = declared(text);
                        let doc = String::new();
                        Field {
                            name,
                            c_type,
                            doc,
                            offset: 0,
                        }
                    })
                    .collect(),
            };
            self.functions.push(Function {
                name,
                returns,
                doc,
                parameters,
            });
        }
    }

    fn structure(&mut self, struct_name: &str, body: &str) {
        let mut fields = Vec::new();
        let (mut end, mut align) = (0_usize, 1);
        let (mut rest, mut doc) = (body, String::new());
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            if let Some(comment) = rest.strip_prefix("/*") {
                let (inside, after) = comment.split_once("*/").unwrap();
                (doc, rest) = (prose(inside), after);
                continue;
            }
            let (text, after) = rest.split_once(';').unwrap();
            rest = after;
            if text.contains("(*") {
                // Only the plugin's table has functions; it is no input.
                self.table.push(doc.trim().to_owned());
                continue;
            }
            let (c_type, name) = declared(text);
            let (size, own_align) = self.shape(&c_type);
            let offset = end.next_multiple_of(own_align);
            (end, align) = (offset + size, align.max(own_align));
            let doc = std::mem::take(&mut doc);
            fields.push(Field {
                name,
                c_type,
                doc,
                offset,
            });
        }
        let size = end.next_multiple_of(align);
        self.structs.insert(
            struct_name.to_owned(),
            Struct {
                fields,
                size,
                align,
            },
        );
    }

    /// Size and alignment of a type.
    pub fn shape(&self, c_type: &str) -> (usize, usize) {
        match c_type {
            "bool" | "char" | "uint8_t" => (1, 1),
            "int32_t" | "uint32_t" | "kvb_status" => (4, 4),
            "int64_t" | "uint64_t" | "size_t" => (8, 8),
            pointer if pointer.ends_with('*') || self.callbacks.contains(pointer) => (8, 8),
            other => {
                let found = self.structs.get(other);
                let found = found.unwrap_or_else(|| panic!("{other} is a type without a size"));
                (found.size, found.align)
            }
        }
    }

    /// The statuses that a function may answer, by its comment and the conventions.
    pub fn statuses(&self, function: &Function) -> BTreeSet<i64> {
        let everywhere = [
            "KVB_OK",
            "KVB_INVALID_ARGUMENT",
            "KVB_NULL_POINTER",
            "KVB_BUSY",
        ];
        let named = words(&function.doc).filter(|word| word.starts_with("KVB_"));
        let mut statuses: BTreeSet<_> = everywhere
            .into_iter()
            .chain(named)
            .filter_map(|name| self.constants.get(name).copied())
            .collect();
        // "Errors: as kvb_other."
        let doc = &function.doc;
        for (start, _) in doc.match_indices("Errors: as ") {
            let other = words(&doc[start + "Errors: as ".len()..]).next().unwrap();
            let other = self
                .functions
                .iter()
                .find(|known| known.name == other)
                .unwrap();
            statuses.extend(self.statuses(other));
        }
        statuses
    }

    /// The constants whose names begin with `prefix`.
    pub fn choices(&self, prefix: &str) -> BTreeSet<i64> {
        let known = self.constants.iter();
        known
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(_, value)| *value)
            .collect()
    }
}

/// The enumeration that a comment names by its prefix, as in `KVB_LOG_*`.
pub fn enumeration(doc: &str) -> Option<&str> {
    let end = doc.find("_*")? + 1;
    let start = doc[..end].rfind("KVB_")?;
    Some(&doc[start..end])
}

pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
}

/// What a comment says, without the stars at the beginnings of its lines.
fn prose(inside: &str) -> String {
    let lines = inside
        .lines()
        .map(|line| line.trim_start().trim_start_matches('*'));
    spaced(&lines.collect::<Vec<_>>().join(" "))
}

fn spaced(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where the semicolon is that ends the statement `text` begins with.
fn statement(text: &str) -> usize {
    let mut depth = 0;
    for (index, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return index,
            _ => {}
        }
    }
    panic!("no end: {text}");
}

/// Type and name of one declaration.
fn declared(text: &str) -> (String, String) {
    let text = spaced(text);
    let start = text.rfind([' ', '*']).unwrap() + 1;
    (text[..start].trim().to_owned(), text[start..].to_owned())
}
