//! [`given!`]: tests that begin alike, as a table of requirements.

/// Tests that begin alike, one requirement a row. Each row is a test of its own name: it makes what
/// `let` says, then runs its block.
///
/// ```
/// pagewire_testkit::given! {
///     let mut list = vec![1, 2];
///
///     pop_takes_the_last {
///         assert_eq!(list.pop(), Some(2));
///     }
///     push_appends {
///         list.push(3);
///         assert_eq!(list, [1, 2, 3]);
///     }
/// }
/// ```
#[macro_export]
macro_rules! given {
    (let $given:pat = $start:expr; $($(#[$meta:meta])* $requirement:ident $row:block)+) => {
        $(
            $(#[$meta])*
            #[test]
            fn $requirement() {
                let $given = $start;
                $row
            }
        )+
    };
}
