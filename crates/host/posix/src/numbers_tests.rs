//! The lowest free number, against a list that is searched.

use super::Numbers;

const LIMIT: usize = 40;

#[test]
fn the_lowest_free_number_is_that_of_a_search() {
    let (mut numbers, mut taken) = (Numbers::new(LIMIT), [false; LIMIT]);
    // Any sequence that comes by every number, in no order.
    let mut state = 1u64;
    for _ in 0..20_000 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (number, least) = ((state >> 33) as usize % LIMIT, (state >> 50) as usize % LIMIT);
        let searched = (least..LIMIT).find(|&number| !taken[number]);
        assert_eq!(numbers.lowest(least), searched, "from {least} on: {taken:?}");
        if taken[number] {
            assert!(!numbers.take(number));
            numbers.give_back(number);
        } else {
            assert!(numbers.take(number));
        }
        taken[number] = !taken[number];
        let runs = taken.chunk_by(|a, b| a == b).filter(|run| !run[0]).count();
        assert_eq!(numbers.runs.len(), runs, "memory is for gaps only");
    }
}

#[test]
fn there_is_none_at_the_limit() {
    let mut numbers = Numbers::new(2);
    assert!(numbers.take(0) && numbers.take(1));
    assert_eq!(
        (numbers.lowest(0), numbers.lowest(2), numbers.lowest(usize::MAX)),
        (None, None, None)
    );
    numbers.give_back(1);
    assert_eq!(numbers.lowest(0), Some(1));
}
