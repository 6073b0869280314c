//! Arguments for any function, derived from the header: a set that succeeds, and for every
//! parameter and every field behind it the values that a host can get wrong.

use crate::good::good;
use crate::header::{Field, Function, Struct, enumeration};
use crate::world::{Arena, Library, SPARE, World, put, word};

/// Where a value stands.
#[derive(Clone, Copy)]
pub enum Place {
    Argument(usize),
    Memory(u64),
}

/// What must come of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// This status, a text that names the argument, and nothing written.
    Refused(&'static str, String),
    /// As with the good arguments.
    Fine,
    /// Any documented end.
    Documented,
}

pub struct Bad {
    pub label: String,
    pub writes: Vec<(Place, u64, usize)>,
    pub expect: Expect,
}

pub struct Built {
    pub arguments: Vec<u64>,
    pub bad: Vec<Bad>,
}

impl Built {
    pub fn apply(&mut self, index: usize) {
        for &(place, value, size) in &self.bad[index].writes {
            match place {
                Place::Argument(at) => self.arguments[at] = value,
                Place::Memory(address) => put(address, value, size),
            }
        }
    }
}

/// Bytes of a buffer, enough for every text.
pub const ROOM: u64 = 8192;
/// What a pointer gets that leads nowhere: a host's NULL with a field's offset, and the like.
const NOWHERE: [u64; 3] = [8, 64, 4088];

impl World {
    pub fn arguments(&self, function: &Function, arena: &mut Arena) -> Vec<u64> {
        self.build(function, arena).arguments
    }

    pub fn build(&self, function: &Function, arena: &mut Arena) -> Built {
        let mut builder = Builder {
            world: self,
            arena,
            function,
            built: Built {
                arguments: vec![0; function.parameters.len()],
                bad: Vec::new(),
            },
        };
        builder.fields(&function.parameters, &function.name, "", None);
        builder.built
    }
}

struct Builder<'a> {
    world: &'a World,
    arena: &'a mut Arena,
    function: &'a Function,
    built: Built,
}

impl Builder<'_> {
    /// Fills the fields of a struct at an address, or the parameters of the function.
    fn fields(&mut self, fields: &[Field], owner: &str, prefix: &str, start: Option<u64>) {
        let place = |index: usize| match start {
            None => Place::Argument(index),
            Some(start) => Place::Memory(start + fields[index].offset as u64),
        };
        for (index, field) in fields.iter().enumerate() {
            let path = format!("{prefix}{}", field.name.trim_end_matches("_or_null"));
            // A list's length stands behind it, or is shared by several.
            let length = fields
                .get(index + 1)
                .filter(|next| next.c_type == "size_t")
                .map(|_| index + 1)
                .or_else(|| fields.iter().position(|field| field.name == "count"));
            let length = length.map(|index| (place(index), &fields[index]));
            self.field(field, owner, &path, place(index), length);
        }
    }

    fn field(
        &mut self,
        field: &Field,
        owner: &str,
        path: &str,
        place: Place,
        length: Option<(Place, &Field)>,
    ) {
        let header = &Library::get().header;
        let c_type = field.c_type.as_str();
        let target = c_type
            .trim_start_matches("const ")
            .trim_end_matches(['*', ' ']);
        let name = field.name.as_str();
        match c_type {
            _ if header.handles.contains(target) && !c_type.ends_with("**") => {
                self.handle(field, target, path, place);
            }
            _ if c_type.ends_with('*') && name.starts_with("out") => {
                let count = length.filter(|(_, field)| field.name == "count");
                self.output(field, target, path, place, count.is_some());
            }
            "char *" | "uint8_t *" if name == "buffer" => {
                let room = self.arena.room(ROOM as usize);
                let capacity = length.unwrap().0;
                self.set(place, room, 8);
                self.set(capacity, ROOM, 8);
                // kvb_last_error is of use to hosts that have no room for more.
                if self.function.name == "kvb_last_error" {
                    for nowhere in [0, 8, 4088] {
                        let writes = vec![(place, nowhere, 8)];
                        self.bad("nowhere", path, writes, Expect::Documented);
                    }
                } else {
                    self.refused("NULL", place, 0, "KVB_NULL_POINTER", path);
                    self.nowhere(path, place);
                }
                for (label, room, capacity_value) in
                    [("no capacity", 0, 0), ("capacity 1", room, 1)]
                {
                    let writes = vec![(place, room, 8), (capacity, capacity_value, 8)];
                    self.bad(label, path, writes, Expect::Documented);
                }
                let writes = vec![(capacity, u64::MAX, 8)];
                self.bad("capacity SIZE_MAX", path, writes, Expect::Fine);
            }
            "void *" => {
                for value in [1, u64::MAX] {
                    let label = format!("{value:#x}");
                    self.bad(&label, path, vec![(place, value, 8)], Expect::Documented);
                }
            }
            "const void *" | "const uint8_t *" | "const char *" | "const uint64_t *"
            | "const uint32_t *" | "const int32_t *" => {
                let (length, _) = length.unwrap_or_else(|| panic!("{path} has no length"));
                self.list(owner, path, target, place, length);
            }
            _ if c_type.starts_with("const ") && header.structs.contains_key(target) => {
                match length.filter(|_| !header.structs[target].grows()) {
                    Some((length, _)) => self.list(owner, path, target, place, length),
                    None => self.structure(field, target, path, place),
                }
            }
            _ if header.structs.contains_key(c_type) => {
                let Place::Memory(address) = place else {
                    panic!("{path} is passed by value");
                };
                let fields = &header.structs[c_type].fields;
                self.fields(fields, c_type, &format!("{path}."), Some(address));
            }
            "uint8_t" if field.doc.starts_with("Flag") => {
                self.set(place, good(owner, name), 1);
                for value in [2, 255] {
                    self.refused(
                        &value.to_string(),
                        place,
                        value,
                        "KVB_INVALID_ARGUMENT",
                        path,
                    );
                }
            }
            "int32_t" => match self.enumeration(field) {
                Some(prefix) => {
                    self.set(place, good(owner, name), 4);
                    let known = header.choices(&prefix);
                    assert!(!known.is_empty(), "{prefix}* has no constants");
                    let next = known.last().unwrap() + 1;
                    for value in [-1, next, i64::from(i32::MAX), i64::from(i32::MIN)] {
                        let label = format!("no {prefix}*: {value}");
                        self.refused(&label, place, value as u64, "KVB_INVALID_ARGUMENT", path);
                    }
                }
                None => self.number(owner, name, path, place, 4),
            },
            "uint32_t" if name == "struct_size" => {}
            "uint32_t" => self.number(owner, name, path, place, 4),
            "uint64_t" | "int64_t" => self.number(owner, name, path, place, 8),
            // Set and varied with the list that it belongs to.
            "size_t" if is_length(name) => {}
            _ if header.callbacks.contains(c_type) => {
                self.set(place, hear_nothing as *const () as u64, 8);
                match field.doc.ends_with("Required.") {
                    true => self.refused("NULL", place, 0, "KVB_NULL_POINTER", path),
                    false => self.bad("NULL", path, vec![(place, 0, 8)], Expect::Documented),
                }
            }
            other => panic!(
                "{}: no inputs for {path}, which is {other}; add them here",
                self.function.name
            ),
        }
    }

    fn handle(&mut self, field: &Field, noun: &str, path: &str, place: Place) {
        self.set(place, self.world.handles.get(noun).copied().unwrap_or(0), 8);
        let optional = field.name.ends_with("_or_null") || self.function.name.ends_with("_free");
        if optional {
            self.bad("NULL", path, vec![(place, 0, 8)], Expect::Fine);
        } else {
            self.refused("NULL", place, 0, "KVB_NULL_POINTER", path);
        }
        let mut wrong = vec![("misaligned".to_owned(), self.value(place).wrapping_add(1))];
        wrong.extend(NOWHERE.map(|address| (format!("address {address}"), address)));
        let others = self.world.handles.iter();
        let others = others.filter(|(other, _)| **other != noun);
        wrong.extend(others.map(|(other, handle)| (format!("a {other}"), *handle)));
        // As a freed handle is while nobody else has its memory.
        let freed = u64::from_be_bytes(*b"kvbfreed").to_ne_bytes();
        wrong.push(("freed".to_owned(), self.arena.bytes(&freed)));
        wrong.push(("zeroes".to_owned(), self.arena.zeroed(64)));
        for (label, value) in wrong {
            self.refused(&label, place, value, "KVB_INVALID_ARGUMENT", path);
        }
    }

    fn output(&mut self, field: &Field, target: &str, path: &str, place: Place, is_list: bool) {
        let header = &Library::get().header;
        let stored = field.c_type.strip_suffix('*').unwrap().trim();
        let (size, align) = header.shape(stored);
        let structure = header.structs.get(target);
        let room = self.arena.room(size * if is_list { 2 } else { 1 });
        self.set(place, room, 8);
        let optional = self.function.name == "kvb_last_error";
        if optional {
            self.bad("NULL", path, vec![(place, 0, 8)], Expect::Fine);
            self.bad("misaligned", path, vec![(place, room + 1, 8)], Expect::Fine);
            self.bad("nowhere", path, vec![(place, 8, 8)], Expect::Fine);
            return;
        }
        self.refused("NULL", place, 0, "KVB_NULL_POINTER", path);
        if align > 1 {
            self.refused("misaligned", place, room + 1, "KVB_INVALID_ARGUMENT", path);
        }
        self.nowhere(path, place);
        if let Some(structure) = structure.filter(|structure| structure.grows()) {
            put(room, size as u64, 4);
            self.sizes(structure, path, room);
        }
    }

    fn structure(&mut self, field: &Field, target: &str, path: &str, place: Place) {
        let structure = &Library::get().header.structs[target];
        let address = self.arena.zeroed(structure.size);
        let optional = field.name.ends_with("_or_null");
        // A pool of the host's needs a table, and no other takes one.
        let is_table = target == "kvb_store_table";
        if !is_table || self.world.of_host {
            self.set(place, address, 8);
        }
        if is_table && self.world.of_host {
            self.refused("NULL", place, 0, "KVB_INVALID_ARGUMENT", path);
        } else if optional {
            self.bad("NULL", path, vec![(place, 0, 8)], Expect::Fine);
        } else {
            self.refused("NULL", place, 0, "KVB_NULL_POINTER", path);
        }
        self.refused(
            "misaligned",
            place,
            address + 1,
            "KVB_INVALID_ARGUMENT",
            path,
        );
        self.nowhere(path, place);
        if structure.grows() {
            put(address, structure.size as u64, 4);
            self.sizes(structure, path, address);
        }
        self.fields(
            &structure.fields,
            target,
            &format!("{path}->"),
            Some(address),
        );
    }

    /// Every size that a struct can say it has.
    fn sizes(&mut self, structure: &Struct, path: &str, address: u64) {
        let place = Place::Memory(address);
        for size in [0, 1, 3] {
            let label = format!("struct_size {size}");
            let path = format!("{path}->struct_size");
            self.refused(&label, place, size, "KVB_INVALID_ARGUMENT", &path);
        }
        let mut ends: Vec<_> = structure.fields[1..]
            .iter()
            .flat_map(|field| [field.offset, field.offset + 1])
            .collect();
        ends.extend([4, structure.size - 1]);
        for size in ends {
            let writes = vec![(place, size as u64, 4)];
            let label = format!("struct_size {size}");
            self.bad(&label, path, writes, Expect::Documented);
        }
        let longer = (structure.size + SPARE) as u64;
        let mut writes = vec![(place, longer, 4)];
        self.bad("longer, zeroed", path, writes.clone(), Expect::Fine);
        let tail = address + structure.size as u64;
        writes.extend((0..SPARE as u64).map(|at| (Place::Memory(tail + at), 0x5a, 1)));
        self.bad("longer, not zeroed", path, writes, Expect::Fine);
    }

    fn list(&mut self, owner: &str, path: &str, target: &str, place: Place, length: Place) {
        let header = &Library::get().header;
        let structure = header.structs.get(target);
        let (element, align) = match target {
            // Tokens: as the good ones are.
            "void" => (4, 4),
            other => header.shape(other),
        };
        let count;
        if let Some(structure) = structure {
            count = if self.shared_count() { 2 } else { 1 };
            let address = self.arena.zeroed(structure.size * 2);
            self.set(place, address, 8);
            self.set(length, count, 8);
            let before = self.built.bad.len();
            for index in (0..count).rev() {
                // Wrong values go into the first element alone.
                self.built.bad.truncate(before);
                let start = address + index * structure.size as u64;
                self.fields(&structure.fields, target, &format!("{path}->"), Some(start));
            }
        } else {
            let name = path.rsplit(['>', '.']).next().unwrap();
            let bytes = self.world.bytes(owner, name, path);
            count = (bytes.len() / element) as u64 / if name == "media_digests" { 32 } else { 1 };
            let address = self.arena.bytes(&bytes);
            self.set(place, address, 8);
            self.set(length, count, 8);
        }
        let start = self.value(place);
        {
            let writes = vec![(place, 0, 8), (length, count.max(1), 8)];
            let expect = match path {
                // NULL is a value of its own.
                "path" => Expect::Documented,
                _ => Expect::Refused("KVB_NULL_POINTER", path.to_owned()),
            };
            self.bad("NULL with a length", path, writes, expect);
            for nowhere in NOWHERE {
                let writes = vec![(place, nowhere, 8), (length, count.max(1), 8)];
                let expect = Expect::Refused("KVB_INVALID_ARGUMENT", path.to_owned());
                self.bad(&format!("address {nowhere}"), path, writes, expect);
            }
        }
        if align > 1 {
            let writes = vec![(place, start + 1, 8), (length, count.max(1), 8)];
            let expect = Expect::Refused("KVB_INVALID_ARGUMENT", path.to_owned());
            self.bad("misaligned", path, writes, expect);
        }
        for huge in [u64::MAX, i64::MAX as u64 / element as u64 + 1] {
            // Of several lists with one length the first is looked at first.
            let named = match length {
                Place::Argument(_) if self.shared_count() => "keys",
                _ => path,
            };
            let expect = Expect::Refused("KVB_INVALID_ARGUMENT", named.to_owned());
            self.bad(
                &format!("length {huge}"),
                path,
                vec![(length, huge, 8)],
                expect,
            );
        }
        for (label, pointer) in [
            ("no length", start),
            ("NULL without a length", 0),
            ("misaligned without a length", start + 1),
        ] {
            let writes = vec![(place, pointer, 8), (length, 0, 8)];
            self.bad(label, path, writes, Expect::Documented);
        }
    }

    fn nowhere(&mut self, path: &str, place: Place) {
        for nowhere in NOWHERE {
            let label = format!("address {nowhere}");
            self.refused(&label, place, nowhere, "KVB_INVALID_ARGUMENT", path);
        }
    }

    fn number(&mut self, owner: &str, name: &str, path: &str, place: Place, size: usize) {
        let value = match name {
            "base" | "address" => self.world.memory.as_ptr() as u64,
            _ => good(owner, name),
        };
        self.set(place, value, size);
        let values: &[u64] = match name {
            // What else a host passes for a length of its memory is followed.
            "address" if owner == "kvb_piece" => &[0, 8, 4088, u64::MAX],
            "size" if owner == "kvb_piece" => &[0, 1, u64::MAX],
            _ => &[
                0,
                1,
                2,
                i32::MAX as u64,
                u64::MAX - 1,
                i64::MAX as u64,
                u64::MAX,
            ],
        };
        for &value in values {
            let label = format!("{value:#x}");
            self.bad(&label, path, vec![(place, value, size)], Expect::Documented);
        }
    }

    /// Which constants a field or parameter takes, by its own comment or the function's.
    fn enumeration(&self, field: &Field) -> Option<String> {
        if !field.doc.is_empty() {
            return enumeration(&field.doc).map(str::to_owned);
        }
        let doc = &self.function.doc;
        let after = &doc[doc.find(&format!("`{}`", field.name))?..];
        // Up to where the next thing is spoken of.
        let end = after[1..]
            .find(['.', ';'])
            .map_or(after.len(), |end| end + 1);
        enumeration(&after[..end]).map(str::to_owned)
    }

    fn shared_count(&self) -> bool {
        let mut parameters = self.function.parameters.iter();
        parameters.any(|parameter| parameter.name == "count")
    }

    fn set(&mut self, place: Place, value: u64, size: usize) {
        match place {
            Place::Argument(index) => self.built.arguments[index] = value,
            Place::Memory(address) => put(address, value, size),
        }
    }

    fn value(&self, place: Place) -> u64 {
        match place {
            Place::Argument(index) => self.built.arguments[index],
            Place::Memory(address) => word(address),
        }
    }

    fn refused(&mut self, label: &str, place: Place, value: u64, status: &'static str, path: &str) {
        // Wide enough for a pointer where one stands; narrower fields have room behind them only
        // when they say so.
        let size = match (place, status) {
            (Place::Argument(_), _) => 8,
            (Place::Memory(_), _)
                if label.starts_with("no KVB") || path.ends_with("struct_size") =>
            {
                4
            }
            (Place::Memory(_), _) if ["2", "255"].contains(&label) => 1,
            _ => 8,
        };
        let expect = Expect::Refused(status, path.to_owned());
        self.bad(label, path, vec![(place, value, size)], expect);
    }

    fn bad(&mut self, label: &str, path: &str, writes: Vec<(Place, u64, usize)>, expect: Expect) {
        let label = format!("{}: {path}: {label}", self.function.name);
        self.built.bad.push(Bad {
            label,
            writes,
            expect,
        });
    }
}

fn is_length(name: &str) -> bool {
    ["size", "count", "capacity", "page_lists"].contains(&name)
        || name.ends_with("_size")
        || name.ends_with("_count")
}

extern "C" fn hear_nothing() {}
