//! Which objects a command that changes or deletes is about.

use anyhow::bail;
use kube::ResourceExt as _;

use crate::confirm::confirm;
use crate::installation::Installation;
use crate::listing::{self, Kind};
use crate::output;

/// Names, labels or all: one of them must be said.
#[derive(Debug, clap::Args)]
pub(crate) struct Selection {
    /// Names to select
    #[arg(required_unless_present_any = ["all", "selector"])]
    names: Vec<String>,

    /// Select all
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Select objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
}

impl Selection {
    /// Finds them. That there is none is said.
    pub(crate) async fn find<K: Kind>(
        &self,
        installation: &Installation,
    ) -> anyhow::Result<Vec<K>> {
        let selector = self.selector.as_deref();
        if selector.is_some_and(|selector| selector.trim().is_empty()) {
            // As it comes from a variable that is not set. It would select everything.
            bail!("the label selector is empty; specify labels, or --all");
        }
        let found = listing::find(installation, &self.names, selector).await?;
        if found.is_empty() {
            output::say(format_args!("no {} found", K::PLURAL));
        }
        Ok(found)
    }
}

/// Flags of a command that deletes.
#[derive(Debug, clap::Args)]
pub(crate) struct Deletion {
    #[command(flatten)]
    which: Selection,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,
}

impl Deletion {
    /// Finds what is to be deleted, and asks whether that is meant. `warn` makes the question of the
    /// names, and may say more before. Nothing if there is nothing to do, which was said then.
    pub(crate) async fn choose<K: Kind>(
        &self,
        installation: &Installation,
        warn: impl AsyncFnOnce(&[String]) -> anyhow::Result<String>,
    ) -> anyhow::Result<Vec<K>> {
        let found: Vec<K> = self.which.find(installation).await?;
        if found.is_empty() {
            return Ok(found);
        }
        let names: Vec<String> = found.iter().map(kube::ResourceExt::name_any).collect();
        let question = warn(&names).await?;
        if confirm(self.confirm, &question)? {
            return Ok(found);
        }
        output::say("nothing was deleted");
        Ok(Vec::new())
    }
}

/// Deletes an object, and says so.
pub(crate) async fn delete<K: Kind>(installation: &Installation, object: &K) -> anyhow::Result<()> {
    let name = object.name_any();
    listing::delete::<K>(installation, &name).await?;
    // What has to be done first may take a while; until then it is there.
    let told = if object.finalizers().is_empty() { "deleted" } else { "is being deleted" };
    output::say(format_args!("{} `{name}` {told}", K::NOUN));
    Ok(())
}
