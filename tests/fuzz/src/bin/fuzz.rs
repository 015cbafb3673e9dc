//! Runs the target that `FUZZ_TARGET` names under libFuzzer, whose options are the arguments. `FUZZ_SEEDS`: first
//! writes the seeds of the target to this directory. `make fuzz` does both.
#![no_main]
#![allow(unsafe_code, reason = "libFuzzer calls a C function")]

use std::{fs, path::Path, process, sync::OnceLock};

use fuzz::FuzzTarget;

static TARGET: OnceLock<&FuzzTarget> = OnceLock::new();

fn target() -> &'static FuzzTarget {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    FuzzTarget::named(&name).unwrap_or_else(|| {
        eprintln!("fuzz: FUZZ_TARGET={name} is none of:");
        fuzz::TARGETS.iter().for_each(|target| println!("{}", target.name));
        process::exit(2)
    })
}

fn start() {
    let target = TARGET.get_or_init(target);
    if let Some(directory) = std::env::var_os("FUZZ_SEEDS") {
        let written = target.corpus().and_then(|corpus| {
            let directory = Path::new(&directory);
            fs::create_dir_all(directory)?;
            (0..).zip(corpus).try_for_each(|(number, input)| fs::write(directory.join(format!("seed-{number}")), input))
        });
        if let Err(error) = written {
            eprintln!("fuzz: cannot write the seeds: {error}");
            process::exit(2);
        }
    }
    // What a target initialises once does not count for the first input.
    target.run(&[]);
}

libfuzzer_sys::fuzz_target!(init: start(), |input: &[u8]| TARGET.get_or_init(target).run(input));
