//! x
pub(crate) fn run(_: &crate::args::DemoOptions) -> Result<(), crate::failure::Failure> {
    Ok(())
}
