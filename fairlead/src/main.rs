//! The binary `fairlead`.

fn main() -> std::process::ExitCode {
    fairlead::main()
}
