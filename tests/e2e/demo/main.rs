//! `make demo`: shows the real binaries step by step, in a cluster of two nodes, their pods and an outside client. It
//! is also a test: it fails if a result differs from the expected one.
//!
//! | module | contains |
//! |---|---|
//! | `show` | output |
//! | `scene` | the cluster and the programs in it |
//! | `kernel` | kernel objects of each backend |
//! | `inspect` | steps: what the frontend, the backends and the kernel tell |
//! | `reach` | steps: connections through each VIP |
//! | `change` | steps: a change, a restart |

mod change;
mod inspect;
mod kernel;
mod reach;
mod scene;
mod show;

use std::{
    env,
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use fairlead_e2e::{Backend, leftovers, uml};

use scene::Scene;
use show::Show;

/// Time limit inside user-mode-linux, on a busy machine.
const GUEST: Duration = Duration::from_secs(10 * 60);

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("\nThe demo failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let backend = match env::args().nth(1).as_deref() {
        None | Some("nftables" | "nft") => Backend::Nft,
        Some("iptables") => Backend::IptablesNft,
        Some("ipvs") => Backend::Ipvs,
        Some(other) => bail!("unknown backend {other:?}: use nftables, iptables or ipvs"),
    };
    let user = fs::metadata("/proc/self").context("get the user of this process")?.uid();
    ensure!(user == 0, "the demo creates network namespaces: run it as root");
    if backend == Backend::Ipvs && !uml::is_guest() {
        return run_in_guest(backend);
    }
    if let Some(shared) = uml::shared_file() {
        uml::load(&[]);
        let details = File::create(&shared).with_context(|| format!("create {}", shared.display()))?;
        run_steps(backend, details)?;
        return Ok(ExitCode::SUCCESS);
    }

    let (details, path) = create_details()?;
    run_steps(backend, details)?;
    name_details(&path);
    Ok(ExitCode::SUCCESS)
}

/// Runs the demo in a kernel that has IPVS. The file of details is its own until it ends.
fn run_in_guest(backend: Backend) -> Result<ExitCode> {
    println!("The demo of IPVS runs in user-mode-linux, because few kernels have IPVS. It is slow there.");
    let this = env::current_exe().context("find this program")?;
    let guest = uml::run(&this, &[backend.name()], GUEST);

    if guest.status == 0 {
        let (_, path) = create_details()?;
        fs::write(&path, guest.shared.unwrap_or_default()).with_context(|| format!("write {}", path.display()))?;
        name_details(&path);
    }
    Ok(ExitCode::from(guest.status))
}

/// A new file of details, which stays after the demo.
fn create_details() -> Result<(File, PathBuf)> {
    let file = tempfile::Builder::new().prefix("fairlead-demo-").suffix(".txt").tempfile();
    file.context("create the file of details")?.keep().context("keep the file of details")
}

fn name_details(path: &Path) {
    println!("The kernel objects of node-a, what it was sent and the whole trace: {}", path.display());
}

/// Runs the demo with a backend.
fn run_steps(backend: Backend, details: File) -> Result<()> {
    let started = Instant::now();
    let mut show = Show::new(details);

    show.step("Two nodes in network namespaces, a frontend, and a backend on each node");
    let mut scene = Scene::start(&mut show, backend)?;
    let shown = steps(&mut show, &mut scene);
    if shown.is_err() {
        scene.print_logs();
    }
    shown?;

    show.step("Clean up");
    let prefix = scene.cluster.prefix().to_owned();
    scene.clean_up(&show)?;
    let left = leftovers(&prefix);
    ensure!(left.is_empty(), "namespaces are left: {left:?}");
    println!("\nAll as expected, in {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn steps(show: &mut Show, scene: &mut Scene) -> Result<()> {
    inspect::status(show, scene).context("ask for the status")?;
    reach::everywhere(show, scene).context("connect to the Service web")?;
    reach::refused(show, scene).context("connect to the Services local-only and empty")?;
    inspect::trace(show, scene).context("trace a packet")?;
    change::replace_pod(show, scene).context("replace a pod")?;
    change::restart(show, scene).context("restart a backend")?;

    inspect::describe_node(show, scene).context("describe node-a")
}
