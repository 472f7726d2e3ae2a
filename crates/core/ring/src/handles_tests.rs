//! Handles: a stale one reaches nothing, and a full table refuses.

use super::{Handles, SLOT_BITS};

#[test]
fn a_handle_from_before_reaches_nothing_though_its_place_is_taken_again() {
    let mut handles = Handles::new(4);
    let first = handles.insert('a').unwrap();
    assert_eq!(handles.remove(first), Some('a'));
    let second = handles.insert('b').unwrap();
    assert_eq!(first as u32, second as u32, "the same place");
    assert_eq!(handles.get_mut(first), None);
    assert_eq!(handles.remove(first), None);
    assert_eq!(handles.len(), 1);
    assert_eq!(handles.remove(second), Some('b'));
}

#[test]
fn a_short_handle_from_before_reaches_nothing_though_its_place_is_taken_again() {
    let mut handles = Handles::new(4);
    let short = Handles::<char>::short;
    let first = handles.insert('a').unwrap();
    assert_eq!(handles.remove_short(short(first)), Some('a'));
    let second = handles.insert('b').unwrap();
    assert_eq!(handles.remove_short(short(first)), None);
    assert_eq!(handles.len(), 1);
    assert_eq!(handles.remove_short(short(second) ^ 1 << SLOT_BITS), None);
    assert_eq!(handles.remove_short(short(second)), Some('b'));
}

#[test]
fn no_handle_is_zero_and_a_full_table_gives_things_back() {
    let mut handles = Handles::new(2);
    let all = [handles.insert('a').unwrap(), handles.insert('b').unwrap()];
    assert!(all.iter().all(|&handle| handle != 0 && Handles::<char>::short(handle) != 0));
    assert!(handles.is_full());
    assert_eq!(handles.insert('c'), Err('c'));
    assert_eq!(handles.remove(all[0]), Some('a'));
    assert!(!handles.is_full());
}
