//! What owners of lent memory, those who use ours, and metadata servers send.

#![no_main]

use kvbridge::store::wire::transfer::frame::{Request, Status};
use kvbridge::store::wire::transfer::http::{self, Answer};
use kvbridge::store::wire::transfer::owner::{self, Description};
use kvbridge_fuzz::edge::Fenced;
use libfuzzer_sys::fuzz_target;

fn description(text: &[u8]) {
    let _ = owner::contact(text);
    let Some(owner) = Description::parse(text) else {
        return;
    };
    assert!(owner.port > 0);
    let mut end = None;
    for &(from, to) in &owner.ranges {
        assert!(
            from < to && end.is_none_or(|end| end < from),
            "in order and apart"
        );
        assert!(owner.lends(from, to - from) && owner.lends(to - 1, 1));
        assert!(!owner.lends(from, to - from + 1) && !owner.lends(to, 1));
        end = Some(to);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut memory = Fenced::new(data.len());
    let bytes = memory.put(data);
    if let Some(request) = bytes.first_chunk().and_then(Request::decode) {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    if let Some(&first) = bytes.first_chunk()
        && let Some(status) = Status::decode(first)
    {
        assert_eq!(status.encode(), first);
    }
    description(bytes);
    if let Ok(Some((kind, text))) = owner::answer(bytes) {
        assert!(text.len() < owner::MOST);
        assert_eq!(bytes[8], kind);
        description(text);
        let cut = &bytes[..text.len() + 8];
        assert_eq!(owner::answer(cut), Ok(None), "a byte is missing");
    }
    let whole = http::answer(bytes, true);
    assert_ne!(whole, Answer::Partial, "nothing more comes");
    match http::answer(bytes, false) {
        Answer::Partial => {}
        settled => assert_eq!(settled, whole, "the end adds nothing"),
    }
    if let Answer::Whole(_, body) = whole {
        description(body);
    }
});
