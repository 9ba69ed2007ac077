//! Turns down, in one line each, the interpreters that the extension module can't be built for. PyO3 does so for
//! free-threaded Pythons before 3.14.

use pyo3_build_config::{InterpreterConfig, PythonImplementation, PythonVersion};

/// The oldest Python that is supported; `python/ringloop/_platform.py` has it too.
const OLDEST: PythonVersion = PythonVersion {
    major: 3,
    minor: 11,
};

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
    if let Some(problem) = problem(pyo3_build_config::get()) {
        println!("cargo::error={problem}");
    }
}

fn problem(config: &InterpreterConfig) -> Option<String> {
    let version = config.version();
    if config.implementation() != PythonImplementation::CPython {
        return Some(format!(
            "ringloop needs CPython; this is {}",
            config.implementation()
        ));
    }
    if version < OLDEST {
        return Some(format!(
            "ringloop needs Python {OLDEST} or later; this is {version}"
        ));
    }
    None
}
