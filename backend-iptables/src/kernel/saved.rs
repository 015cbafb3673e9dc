//! What every iptables that is installed has saved, ours or not: for people who look into a node.

use anyhow::Result;
use backend::iptables::Variant;
use proto::model::IpFamily;

use super::{exec, tools::save};

/// The rules of one family and variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// As a person would call it: `iptables-nft`.
    pub program: String,
    /// Whose packets it sees.
    pub family: IpFamily,
    /// Where it keeps its rules.
    pub variant: Variant,
    /// What `iptables-save` prints.
    pub text: String,
}

/// Everything, of both variants; where there are no two to choose from, of the only one. Empty where none is installed.
///
/// # Errors
/// When one of them fails.
pub async fn saved() -> Result<Vec<Saved>> {
    let mut all = Vec::new();
    for family in IpFamily::ALL {
        let before = all.len();
        for variant in Variant::ALL {
            let program = variant.program(family).to_owned();
            all.extend(save(&program).await?.map(|text| Saved { program, family, variant, text }));
        }
        if all.len() > before {
            continue;
        }
        let program = ["iptables", "ip6tables"][family as usize].to_owned();
        if let Some(text) = save(&program).await? {
            let version = exec::run(&program, &["--version"], "").await?;
            let variant = version.map_or(Variant::Legacy, |ended| Variant::from_version(&ended.output));
            all.push(Saved { program, family, variant, text });
        }
    }
    Ok(all)
}
