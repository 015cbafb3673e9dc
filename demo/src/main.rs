//! `make demo`: two nodes, their pods and a client outside, the real programs between them, and what a person would look at, step by
//! step. It is a test too: it ends with an error when anything it shows is not as it should be.
//!
//! | module | holds |
//! |---|---|
//! | `show` | how it looks |
//! | `scene` | the cluster and the programs in it |
//! | `kernel` | what each backend leaves in a kernel, and how it is seen |
//! | `reach` | steps: who reaches what |
//! | `change` | steps: a change, a restart |

mod change;
mod kernel;
mod reach;
mod scene;
mod show;

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{Backend, leftovers, uml};

use scene::Scene;
use show::Show;

/// How long it may take in a kernel of its own, on a machine that does much else.
const GUEST: Duration = Duration::from_secs(10 * 60);

fn main() -> ExitCode {
    match run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("\nThe demo has failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let backend = match env::args().nth(1).as_deref() {
        None | Some("nft") => Backend::Nft,
        Some("iptables") => Backend::IptablesNft,
        Some("ipvs") => Backend::Ipvs,
        Some(other) => bail!("there is no backend {other:?} to show; there are: nft, iptables, ipvs"),
    };
    let user = fs::metadata("/proc/self").context("look into /proc")?.uid();
    ensure!(user == 0, "it makes network namespaces: run it as root");
    if backend == Backend::Ipvs {
        if !uml::is_guest() {
            println!(
                "This machine may have no IPVS: the demo runs in a kernel of its own, user-mode-linux. It is slow there."
            );
            let this = env::current_exe().context("find this program")?;
            return Ok(ExitCode::from(uml::run(&this, &[backend.name()], GUEST).status));
        }
        uml::load(&[]);
    }
    shown(backend).map(|()| ExitCode::SUCCESS)
}

/// All of it, with a backend.
fn shown(backend: Backend) -> Result<()> {
    let started = Instant::now();
    let mut show = Show::new();

    show.step("Lay out a cluster in network namespaces, and start Fairlead");
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
    show.result("all programs ended by themselves, no namespace is left");
    println!("\nAll as expected, in {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn steps(show: &mut Show, scene: &mut Scene) -> Result<()> {
    show.step("What is node-a told to serve?");
    let arguments = ["services", "--frontend", &scene.address(), "--node", "node-a"];
    show.command("node-a", &format!("fairlead {}", arguments.join(" ")));
    let table = scene.cluster.node('a').netns.output(scene.program()?, &arguments);
    show.text(&table);
    for name in ["default/web:http/tcp", "default/local-only/tcp", "default/empty/tcp"] {
        ensure!(table.contains(name), "{name} is missing");
    }

    reach::everywhere(show, scene).context("reach the service web")?;
    reach::policy_local(show, scene).context("reach the service local-only")?;
    reach::empty(show, scene).context("reach the service empty")?;
    change::replace_pod(show, scene).context("replace a pod")?;
    change::restart(show, scene).context("restart a backend")?;

    show.step("What is in the kernel of node-a?");
    kernel::show(show, scene.backend, &scene.cluster.node('a').netns);
    Ok(())
}
