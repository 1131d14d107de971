//! Runs targets without coverage guidance.
//!
//! ```text
//! bowline-fuzz-replay list
//! bowline-fuzz-replay corpus TARGET FOLDER MUTATIONS CURRENT   the corpus and mutations of it
//! bowline-fuzz-replay input TARGET FILE                        one input, to repeat a fault
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a tool for developers")]

use std::path::Path;
use std::process::ExitCode;

use bowline_fuzz::{Target, replay, targets};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = replay::limit_memory().and_then(|()| match arguments[..] {
        ["list"] => {
            for target in &targets::ALL {
                println!("{}", target.name);
            }
            Ok(())
        }
        ["corpus", target, folder, mutations, current] => {
            let mutations = mutations.parse().map_err(std::io::Error::other)?;
            replay::run(find(target)?, Path::new(folder), mutations, Path::new(current))
        }
        ["input", target, file] => replay::run_one(find(target)?, &std::fs::read(file)?),
        _ => Err(std::io::Error::other("expected `list`, `corpus …` or `input …`")),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn find(name: &str) -> std::io::Result<&'static Target> {
    Target::find(name).ok_or_else(|| std::io::Error::other(format!("there is no target {name:?}")))
}
