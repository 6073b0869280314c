//! The text of a configuration: what is read can be rendered, and that reads as the same.

#![no_main]

use kvbridge::ffi::config::{kvb_config, kvb_config_free, kvb_config_from_json, kvb_config_render};
use kvbridge::ffi::status::{KVB_CONFIG_INVALID, KVB_OK, KVB_TOO_SMALL};
use kvbridge_fuzz::edge::Fenced;
use kvbridge_fuzz::server::last_error;
use libfuzzer_sys::fuzz_target;
use std::ptr;

fn read(bytes: &[u8]) -> Option<*mut kvb_config> {
    let mut config = ptr::null_mut();
    // SAFETY: the bytes are as many as said, the result has its place.
    let status = unsafe { kvb_config_from_json(bytes.as_ptr(), bytes.len(), &mut config) };
    if status != KVB_OK {
        assert_eq!(status, KVB_CONFIG_INVALID, "{}", last_error());
        assert!(config.is_null() && last_error().len() > 10);
        return None;
    }
    Some(config)
}

fn rendered(config: *const kvb_config) -> Vec<u8> {
    let mut needed = 0;
    // SAFETY: the handle is alive, the buffer has the room that is said.
    unsafe {
        let status = kvb_config_render(config, ptr::null_mut(), 0, &mut needed);
        assert_eq!(status, KVB_TOO_SMALL, "{}", last_error());
        let mut text = vec![0_u8; needed];
        let room = text.as_mut_ptr().cast();
        let status = kvb_config_render(config, room, text.len(), &mut needed);
        assert_eq!((status, needed), (KVB_OK, text.len()), "{}", last_error());
        assert_eq!(text.pop(), Some(0));
        text
    }
}

fuzz_target!(|data: &[u8]| {
    let mut memory = Fenced::new(data.len());
    let Some(config) = read(memory.put(data)) else {
        return;
    };
    let text = rendered(config);
    let again = read(&text);
    let again = again.unwrap_or_else(|| panic!("its own text is refused: {}", last_error()));
    assert_eq!(rendered(again), text);
    // SAFETY: made above, freed once.
    unsafe {
        kvb_config_free(config);
        kvb_config_free(again);
    }
});
