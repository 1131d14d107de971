//! Selection of the objects that a command changes or deletes.

use anyhow::{anyhow, bail};
use kube::ResourceExt as _;

use crate::confirm::confirm;
use crate::installation::Installation;
use crate::listing::{self, ResourceKind};
use crate::output;

/// Names, labels or all: one of them must be said.
#[derive(Debug, clap::Args)]
pub(crate) struct Selection {
    /// Names of the objects
    #[arg(required_unless_present_any = ["all", "selector"])]
    names: Vec<String>,

    /// All objects of this type
    #[arg(long, conflicts_with_all = ["names", "selector"])]
    all: bool,

    /// Objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "names")]
    selector: Option<String>,
}

impl Selection {
    /// Finds the objects. If there are none, prints a message.
    pub(crate) async fn find<K: ResourceKind>(
        &self,
        installation: &Installation,
    ) -> anyhow::Result<Vec<K>> {
        let selector = self.selector.as_deref();
        if selector.is_some_and(|selector| selector.trim().is_empty()) {
            // The value of an unset variable. It would select everything.
            bail!("the label selector is empty; specify labels, or --all");
        }
        let found = listing::find(installation, &self.names, selector).await?;
        if found.is_empty() {
            output::print_message(format_args!("no {} found", K::PLURAL));
        }
        Ok(found)
    }
}

/// Flags of a command that deletes.
#[derive(Debug, clap::Args)]
pub(crate) struct Deletion {
    #[command(flatten)]
    selection: Selection,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,
}

impl Deletion {
    /// Finds the objects to delete, and asks for confirmation. `warn` turns the names into the question, and may print
    /// warnings before. Returns nothing if there is nothing to do, after a message.
    pub(crate) async fn choose<K: ResourceKind>(
        &self,
        installation: &Installation,
        warn: impl AsyncFnOnce(&[String]) -> anyhow::Result<String>,
    ) -> anyhow::Result<Vec<K>> {
        let found = self.selection.find::<K>(installation).await;
        let found: Vec<K> =
            found.map_err(|error| with_deletion_state(error, self.selection.names.len()))?;
        if found.is_empty() {
            return Ok(found);
        }
        let names: Vec<String> = found.iter().map(kube::ResourceExt::name_any).collect();
        let question = warn(&names).await?;
        if confirm(self.confirm, &question)? {
            return Ok(found);
        }
        output::print_message("nothing was deleted");
        Ok(Vec::new())
    }
}

/// Adds to an error that the other objects still exist, if several were named.
fn with_deletion_state(error: anyhow::Error, names: usize) -> anyhow::Error {
    if names < 2 {
        return error;
    }
    anyhow!("{}; nothing was deleted", output::error_chain(&error))
}

/// Deletes an object, and prints a message.
pub(crate) async fn delete<K: ResourceKind>(
    installation: &Installation,
    object: &K,
) -> anyhow::Result<()> {
    let name = object.name_any();
    listing::delete::<K>(installation, &name).await?;
    // Finalizers may take a while; the object exists until then.
    let state = if object.finalizers().is_empty() { "deleted" } else { "is being deleted" };
    output::print_message(format_args!("{} `{name}` {state}", K::NOUN));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_one_of_several_names_says_that_nothing_was_deleted() {
        let text = |names: usize| {
            let error = anyhow!("schedule `bad` not found");
            with_deletion_state(error, names).to_string()
        };
        assert_eq!(text(1), "schedule `bad` not found");
        assert_eq!(text(2), "schedule `bad` not found; nothing was deleted");
    }
}
