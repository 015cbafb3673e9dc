//! `make demo`: shows the real binaries step by step, in a cluster of two nodes, their pods and an outside client. It
//! is also a test: it fails if a result differs from the expected one.
//!
//! | module | contains |
//! |---|---|
//! | `show` | output |
//! | `scene` | the cluster and the programs in it |
//! | `kernel` | kernel objects of each backend |
//! | `reach` | steps: connections through each VIP |
//! | `change` | steps: a change, a restart |

mod change;
mod kernel;
mod reach;
mod scene;
mod show;

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
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
    if backend == Backend::Ipvs {
        if !uml::is_guest() {
            println!("The demo of IPVS runs in user-mode-linux, because few kernels have IPVS. It is slow there.");
            let this = env::current_exe().context("find this program")?;
            return Ok(ExitCode::from(uml::run(&this, &[backend.name()], GUEST).status));
        }
        uml::load(&[]);
    }
    run_steps(backend).map(|()| ExitCode::SUCCESS)
}

/// Runs the demo with a backend.
fn run_steps(backend: Backend) -> Result<()> {
    let started = Instant::now();
    let mut show = Show::new();

    show.step("Create a cluster in network namespaces, and start Fairlead");
    let mut scene = Scene::start(&show, backend)?;
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
    show.result("all processes have exited, all namespaces are removed");
    println!("\nAll as expected, in {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn steps(show: &mut Show, scene: &mut Scene) -> Result<()> {
    show.step("What does the frontend send to node-a?");
    let arguments = ["services", "--frontend", &scene.address(), "--node", "node-a"];
    show.command("node-a", &format!("fairlead {}", arguments.join(" ")));
    let table = scene.cluster.node('a').netns.output(scene.program()?, &arguments);
    show.text(&table);
    for name in ["default/web:http/tcp", "default/local-only/tcp", "default/empty/tcp"] {
        ensure!(table.contains(name), "{name} is missing");
    }

    reach::everywhere(show, scene).context("connect to the Service web")?;
    reach::policy_local(show, scene).context("connect to the Service local-only")?;
    reach::empty(show, scene).context("connect to the Service empty")?;
    change::replace_pod(show, scene).context("replace a pod")?;
    change::restart(show, scene).context("restart a backend")?;

    show.step("What is in the kernel of node-a?");
    kernel::show(show, scene.backend, &scene.cluster.node('a').netns);
    Ok(())
}
