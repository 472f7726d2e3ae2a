//! Replays the corpus of every fuzz target.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/targets.rs"]
#[allow(dead_code)]
mod targets;

#[test]
fn every_input_of_the_corpus_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut inputs = 0;
    for target in fs::read_dir(&corpus).expect("corpus").flatten() {
        let name = target.file_name().into_string().expect("a target's name");
        for input in fs::read_dir(target.path()).expect("inputs").flatten() {
            let data = fs::read(input.path()).expect("input");
            assert!(targets::replay(&name, &data), "no target is called {name}");
            inputs += 1;
        }
    }
    assert!(inputs > 100, "the corpus is gone: {inputs} inputs");
}
