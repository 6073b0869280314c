//! A metadata of anybody's making on a worker: whatever it names, no call does more than fail, and
//! nothing outside of the registered slots is touched.

#![no_main]

use kvbridge_fuzz::mutate;
use kvbridge_fuzz::server::Server;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use std::cell::RefCell;

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate::metadata(data, size, max_size, seed)
});

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    SERVER.with_borrow_mut(|server| server.get_or_insert_with(Server::new).receive(data));
});
