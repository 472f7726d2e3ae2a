//! x
pub(crate) fn run(_: &crate::args::BenchOptions) -> Result<(), crate::failure::Failure> {
    Ok(())
}
