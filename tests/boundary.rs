//! Every exported function with every input that a host can get wrong. The walk is derived from
//! the public header: a function, parameter or type for which there are no inputs fails it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(unsafe_code, reason = "calls the library as a host does")]

#[path = "boundary/good.rs"]
mod good;
#[path = "boundary/header.rs"]
mod header;
#[path = "boundary/inputs.rs"]
mod inputs;
#[path = "boundary/world.rs"]
mod world;

use header::Function;
use inputs::{Bad, Expect};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use world::{Arena, Library, World, announce, forget_error, last_error, word};

/// The log callback and the crash's label are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes no parameters, so that nothing can be wrong.
const WITHOUT: [&str; 2] = ["kvb_version", "kvb_abi_version"];

fn returns_status(function: &Function) -> bool {
    function.returns == "kvb_status"
}

/// Calls with one bad input and says what was wrong with what came of it.
fn complaint(world: &World, function: &Function, index: usize) -> Option<String> {
    let library = Library::get();
    let header = &library.header;
    let mut arena = Arena::new();
    let mut built = world.build(function, &mut arena);
    built.apply(index);
    let Bad { label, expect, .. } = &built.bad[index];
    let before = arena.snapshot();
    let memory = world.memory.clone();
    forget_error(&function.name);
    announce(label);
    let status = library.call(&function.name, &built.arguments);
    let text = last_error();
    let said = text.starts_with(&format!("{}: ", function.name));
    let complain = |what: &str| Some(format!("{label}: {what}; status {status}, \"{text}\""));

    let number = |name: &str| header.constants[name] as i32;
    let failed = match function.returns.as_str() {
        "kvb_status" => status != 0,
        "void" => said,
        _ => status == 0,
    };
    if returns_status(function) {
        if !header.statuses(function).contains(&i64::from(status)) {
            return complain("this status is not documented");
        }
        if function.name != "kvb_last_error" && said != failed {
            return complain("the text is not the status's");
        }
    }
    if let Expect::Refused(status_name, path) = expect {
        if returns_status(function) && status != number(status_name) {
            return complain(&format!("this should be {status_name}"));
        }
        if !said || !text.contains(path.as_str()) {
            return complain(&format!("the text does not name {path}"));
        }
    } else if *expect == Expect::Fine && failed {
        return complain("this should be fine");
    }
    // What is written is what the outputs are, and on a failure nothing.
    let too_small = status == number("KVB_TOO_SMALL");
    let outputs = if failed && !too_small {
        Vec::new()
    } else {
        outputs(function, &built.arguments, too_small)
    };
    let mut changed = arena.changed(&before);
    changed.retain(|address| !outputs.iter().any(|output| output.contains(address)));
    if !changed.is_empty() || (failed && memory != world.memory) {
        return complain("something else was written");
    }
    if !failed {
        release(function, &built.arguments);
    }
    None
}

/// The bytes that a call may write, when it succeeds or for want of room.
fn outputs(function: &Function, arguments: &[u64], too_small: bool) -> Vec<Range<u64>> {
    let header = &Library::get().header;
    let argument = |name: &str| {
        let mut names = function.parameters.iter();
        names
            .position(|known| known.name == name)
            .map(|at| arguments[at])
    };
    let whole = !too_small || function.name == "kvb_last_error";
    let parameters = function.parameters.iter().zip(arguments);
    let outputs = parameters.filter_map(|(parameter, &address)| {
        let stored = parameter.c_type.strip_suffix('*')?.trim();
        let size = match parameter.name.as_str() {
            "buffer" if whole => {
                let needed =
                    argument("out_needed").filter(|needed| needed % 8 == 0 && *needed > 4096);
                let needed = needed.map_or(u64::MAX, word);
                needed.min(argument("capacity")?).min(inputs::ROOM)
            }
            "out_needed" => 8,
            name if name.starts_with("out") && whole => match header.structs.get(stored) {
                Some(structure) if structure.grows() => {
                    (word(address) & u64::from(u32::MAX)).min(structure.size as u64)
                }
                _ => header.shape(stored).0 as u64 * argument("count").unwrap_or(1),
            },
            _ => return None,
        };
        Some(address..address.saturating_add(size))
    });
    outputs.collect()
}

/// Frees what a successful call made.
fn release(function: &Function, arguments: &[u64]) {
    for (parameter, argument) in function.parameters.iter().zip(arguments) {
        if let Some(noun) = parameter.c_type.strip_suffix(" **") {
            Library::get().call(&format!("{noun}_free"), &[word(*argument)]);
        }
    }
    if function.name == "kvb_set_log" {
        Library::get().must("kvb_set_log", &[0, 0, 0]);
    }
}

#[test]
fn every_function_refuses_every_bad_input() {
    let _alone = alone();
    let library = Library::get();
    let mut names: Vec<_> = library
        .header
        .functions
        .iter()
        .map(|known| &known.name)
        .collect();
    let mut listed = library.header.table.clone();
    listed.push("kvb_plugin_entry".to_owned());
    listed.sort_unstable();
    names.sort_unstable();
    assert!(names.into_iter().eq(&listed), "the table lacks a function");

    let (mut complaints, mut calls) = (Vec::new(), 0);
    for function in &library.header.functions {
        if WITHOUT.contains(&function.name.as_str()) {
            assert!(function.parameters.is_empty());
            continue;
        }
        let mut shared = World::new(&function.name);
        let inputs = shared.build(function, &mut Arena::new()).bad;
        assert!(!inputs.is_empty(), "{} has no inputs", function.name);
        calls += inputs.len();
        for (index, bad) in inputs.iter().enumerate() {
            // What may succeed changes the world.
            let own = match bad.expect {
                Expect::Refused(..) => None,
                _ => Some(World::new(&function.name)),
            };
            let world = own.as_ref().unwrap_or(&shared);
            complaints.extend(complaint(world, function, index));
            world.probe();
        }
        // After all of that the function does what it is for.
        let mut arena = Arena::new();
        let arguments = shared.arguments(function, &mut arena);
        announce(&function.name);
        forget_error(&function.name);
        let status = library.call(&function.name, &arguments);
        if returns_status(function) && status != 0 {
            complaints.push(format!("{} after all: {}", function.name, last_error()));
        } else {
            release(function, &arguments);
        }
        if let Some(noun) = function.name.strip_suffix("_free") {
            assert!(
                last_error().starts_with("kvb_layout_new"),
                "{}",
                last_error()
            );
            shared.handles.remove(noun);
        }
    }
    assert!(
        complaints.is_empty(),
        "{} of {calls}:\n{}",
        complaints.len(),
        complaints.join("\n")
    );
}

#[test]
fn a_path_is_told_apart_from_no_path() {
    let _alone = alone();
    let mut arena = Arena::new();
    let (path, out) = (arena.bytes(b"a\0b"), arena.room(8));
    for (path, size, expected) in [
        (path, 0, "path is empty"),
        (path, 3, "path has a NUL at byte 1"),
    ] {
        let status = Library::get().call("kvb_config_from_file", &[path, size, out]);
        let text = last_error();
        assert_eq!(status, 1, "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn only_a_pool_of_the_host_takes_a_table() {
    let _alone = alone();
    let library = Library::get();
    let world = World::new("");
    let mut arena = Arena::new();
    let function = library.function("kvb_store_open");
    let mut arguments = world.arguments(function, &mut arena);
    library.must(&function.name, &arguments);
    release(function, &arguments);
    let host = World::new("kvb_store_open");
    let table = host.arguments(function, &mut arena)[2];
    arguments[2] = table;
    assert_eq!(library.call(&function.name, &arguments), 1);
    let expected = "kvb_store_open: table: kvbridge.store is \"embedded\"";
    assert!(last_error().starts_with(expected), "{}", last_error());
    // And its workers are made on a store.
    let function = library.function("kvb_worker_new");
    let mut arguments = host.arguments(function, &mut arena);
    arguments[2] = 0;
    assert_eq!(library.call(&function.name, &arguments), 1);
    let expected = "kvb_worker_new: the store \"host\" needs a table";
    assert!(last_error().starts_with(expected), "{}", last_error());
}

/// Functions that answer KVB_CLOSED for good after a shutdown.
const CLOSED: [&str; 3] = [
    "kvb_worker_register_layout",
    "kvb_worker_lookup",
    "kvb_worker_wait_for_save",
];

#[test]
fn after_a_shutdown_every_function_has_a_documented_end() {
    let _alone = alone();
    let library = Library::get();
    for function in &library.header.functions {
        let mut parameters = function.parameters.iter();
        let concerned = parameters.any(|field| {
            field.c_type.contains("kvb_worker *") || field.c_type.contains("kvb_scheduler *")
        });
        if !concerned || !returns_status(function) {
            continue;
        }
        let world = World::new(&function.name);
        let worker = world.handles["kvb_worker"];
        library.must("kvb_worker_shutdown", &[worker, 1000]);
        let mut arena = Arena::new();
        let arguments = world.arguments(function, &mut arena);
        announce(&function.name);
        let status = library.call(&function.name, &arguments);
        let documented = library.header.statuses(function);
        assert!(
            documented.contains(&i64::from(status)),
            "{}: {status}, {}",
            function.name,
            last_error()
        );
        if CLOSED.contains(&function.name.as_str()) {
            assert_eq!(status, 12, "{}: {}", function.name, last_error());
        }
        if status == 0 {
            release(function, &arguments);
        }
        library.must("kvb_worker_shutdown", &[worker, 1000]);
        world.probe();
    }
}

/// Calls to be made inside the log callback, and what came of them.
struct Inside {
    calls: Vec<(String, Arena, Vec<u64>)>,
    answers: Vec<(String, i32, String, bool)>,
}

extern "C" fn call_everything(
    context: &mut Inside,
    _: i32,
    _: *const u8,
    _: usize,
    _: *const u8,
    _: usize,
) {
    for (name, arena, arguments) in std::mem::take(&mut context.calls) {
        let before = arena.snapshot();
        let status = Library::get().call(&name, &arguments);
        let untouched = arena.changed(&before).is_empty();
        let answer = (name, status, last_error(), untouched);
        context.answers.push(answer);
    }
}

#[test]
fn every_call_from_inside_the_log_callback_answers_busy() {
    let _alone = alone();
    let library = Library::get();
    let world = World::new("");
    let functions = library.header.functions.iter();
    let functions = functions.filter(|function| {
        !WITHOUT.contains(&function.name.as_str()) && function.name != "kvb_last_error"
    });
    let calls = functions.map(|function| {
        let mut arena = Arena::new();
        let arguments = world.arguments(function, &mut arena);
        (function.name.clone(), arena, arguments)
    });
    let mut inside = Inside {
        calls: calls.collect(),
        answers: Vec::new(),
    };
    let context = &raw mut inside as u64;
    let callback = call_everything as *const () as u64;
    library.must("kvb_set_log", &[callback, context, 5]);
    // Making a world writes lines.
    let other = World::new("");
    library.must("kvb_set_log", &[0, 0, 0]);
    drop(other);
    assert_eq!(
        inside.answers.len(),
        library.header.functions.len() - WITHOUT.len() - 1
    );
    for (name, status, text, untouched) in &inside.answers {
        if returns_status(library.function(name)) {
            assert_eq!(*status, 11, "{name}: {text}");
        }
        assert!(
            text.starts_with(&format!("{name}: ")) && text.contains("log callback"),
            "{name}: {text}"
        );
        assert!(untouched, "{name} wrote something");
    }
    // Nothing is poisoned and nothing was freed.
    world.probe();
}

#[test]
fn two_threads_on_one_handle_get_their_answer_or_busy() {
    let _alone = alone();
    let library = Library::get();
    for function in &library.header.functions {
        if !returns_status(function) {
            continue;
        }
        let world = World::new(&function.name);
        announce(&function.name);
        // What one thread alone gets, the first time and later.
        let mut expected = BTreeSet::from([11]);
        for _ in 0..2 {
            let mut arena = Arena::new();
            let arguments = world.arguments(function, &mut arena);
            expected.insert(library.call(&function.name, &arguments));
        }
        let turn = |world: &World| {
            for _ in 0..20 {
                let mut arena = Arena::new();
                let arguments = world.arguments(function, &mut arena);
                let status = library.call(&function.name, &arguments);
                assert!(
                    expected.contains(&status),
                    "{}: {status}, {}",
                    function.name,
                    last_error()
                );
                if status == 0 && function.name != "kvb_set_log" {
                    release(function, &arguments);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| turn(&world));
            scope.spawn(|| turn(&world));
        });
        if function.name == "kvb_set_log" {
            library.must("kvb_set_log", &[0, 0, 0]);
        }
        world.probe();
    }
}

#[test]
fn two_threads_that_call_everything_on_the_same_handles_break_nothing() {
    let _alone = alone();
    let library = Library::get();
    let world = World::new("");
    announce("two threads");
    let mut functions: Vec<_> = library.header.functions.iter().collect();
    // What frees or ends a handle has its own rules, and the callback is nobody's handle.
    functions.retain(|function| {
        returns_status(function)
            && !["kvb_worker_shutdown", "kvb_set_log"].contains(&function.name.as_str())
    });
    let turn = |function: &Function| {
        let mut arena = Arena::new();
        let arguments = world.arguments(function, &mut arena);
        let status = library.call(&function.name, &arguments);
        assert!(
            library
                .header
                .statuses(function)
                .contains(&i64::from(status)),
            "{}: {status}, {}",
            function.name,
            last_error()
        );
        if status == 0 {
            release(function, &arguments);
        }
    };
    std::thread::scope(|scope| {
        for reversed in [false, true] {
            let mut functions = functions.clone();
            if reversed {
                functions.reverse();
            }
            scope.spawn(move || {
                for _ in 0..20 {
                    functions.iter().for_each(|function| turn(function));
                }
            });
        }
    });
    world.probe();
}
