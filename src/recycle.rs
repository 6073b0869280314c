//! Lists whose memory outlives what lay in them.

/// The memory of a list, empty, for elements of another lifetime: a list of borrows can be refilled call after call
/// without allocating.
pub fn recycled<T, U>(mut list: Vec<T>) -> Vec<U> {
    list.clear();
    // Collecting in place keeps the allocation where both types have the same shape.
    list.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_keeps_its_memory() {
        let mut list: Vec<&'static [u8]> = Vec::with_capacity(32);
        list.push(&[1, 2]);
        let before = list.as_ptr().addr();
        let again: Vec<&[u8]> = recycled(list);
        assert!(again.is_empty());
        assert_eq!((again.as_ptr().addr(), again.capacity()), (before, 32));
    }
}
