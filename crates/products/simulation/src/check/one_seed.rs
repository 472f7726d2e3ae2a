//! One run of one seed: `Builder::build` makes a simulation, `Builder::run` runs a scenario on a thread.

use crate::seeds::seed_from_env;

use crate::Result;
use crate::builder::Builder;
use crate::report::outcome::{Failure, FailureKind, Report};
use crate::runtime::panic_hook;
use crate::sim::Sim;

impl Builder {
    /// Builds the simulation, which runs on this thread.
    ///
    /// # Panics
    /// If `PAGEWIRE_SEED` is no number.
    pub fn build(self) -> Sim {
        let seed = self.seed.or_else(seed_from_env).unwrap_or(0);
        Sim::new(self, seed)
    }

    /// Runs one scenario on a thread of its own, so that nothing is left of another run in the
    /// thread's variables: `scenario` adds hosts, and the simulation runs when it returns.
    ///
    /// # Errors
    /// As [`Sim::run`], and what `scenario` returns.
    pub fn run(
        self,
        scenario: impl FnOnce(&mut Sim) -> Result + Send,
    ) -> std::result::Result<Report, Failure> {
        let test = self.test.clone();
        let body = move || run_here(self, scenario);
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let thread = thread.name(test.name.unwrap_or_else(|| "simulation".into()));
            match thread.spawn_scoped(scope, body) {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                Err(error) => panic!("no thread for the simulation: {error}"),
            }
        })
    }
}

/// Builds, lets the scenario add hosts, and runs.
fn run_here(
    builder: Builder,
    scenario: impl FnOnce(&mut Sim) -> Result,
) -> std::result::Result<Report, Failure> {
    panic_hook::set_quiet(builder.quiet);
    let mut sim = builder.build();
    let result = match panic_hook::catch(|| scenario(&mut sim)) {
        Ok(Ok(())) => sim.run(),
        Ok(Err(error)) => Err(match error.downcast::<Failure>() {
            // The failure of a run inside of the scenario.
            Ok(failure) => *failure,
            Err(error) => sim.failure(FailureKind::Scenario, None, error.to_string()),
        }),
        Err(text) => {
            let what = format!("the scenario panicked: {text}");
            Err(sim.failure(FailureKind::Panic, None, what))
        }
    };
    let ended = sim.stop_all();
    let mut result = result.and_then(|report| ended.map(|()| report));
    let text = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let cut_off = sim.world.lock().record.end(&lines);
    let notes = match &mut result {
        Ok(report) => &mut report.warnings,
        Err(failure) => &mut failure.0.details,
    };
    for line in cut_off {
        if !notes.contains(&line) {
            notes.push(line);
        }
    }
    result
}
