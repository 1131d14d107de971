//! `bowline plugin inspect`

use std::path::PathBuf;
use std::time::Duration;

use bowline_plugin::ResourceSelector;
use bowline_plugin_host::inspect::{
    AppliesTo, InspectedPlugin, Inspection, inspect, trait_and_version,
};
use bowline_plugin_host::{InheritedEnvironment, Limits, Options};
use serde_json::{Value, json};

use super::{Format, identity, single_line};
use crate::exit::Exit;
use crate::output;

/// Longest wait for each answer of the binary.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Start a plugin binary and list its plugins
///
/// Needs no cluster. Problems with the binary are printed to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugin binary to inspect
    path: PathBuf,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let command = super::absolute_path(&args.path)?;
    let limits = Limits {
        start: CALL_TIMEOUT,
        metadata: CALL_TIMEOUT,
        applies_to: CALL_TIMEOUT,
        ..Limits::default()
    };
    let inherited_environment = InheritedEnvironment::All;
    let options = Options { limits, inherited_environment, ..Options::default() };
    let inspection = inspect(&command, &options).await?;
    for warning in warnings(&inspection) {
        output::print_message(format_args!("warning: {warning}"));
    }
    match args.output {
        Format::Table => {
            let rows = inspection.plugins.iter().map(row).collect();
            output::print_data(output::table(["KIND", "NAME", "VERSION", "APPLIES TO"], rows))?;
        }
        Format::Json => {
            let plugins: Vec<Value> = inspection.plugins.iter().map(document).collect();
            output::print_data(output::document(&plugins.into()))?;
        }
    }
    Ok(Exit::Success)
}

/// Problems with the binary, one line each.
fn warnings(inspection: &Inspection) -> Vec<String> {
    let problems = inspection.problems.iter().map(|problem| single_line(&problem.reason));
    let unknown = inspection.plugins.iter().filter_map(|inspected| {
        let InspectedPlugin { plugin, applies_to } = inspected;
        let AppliesTo::Unknown(error) = applies_to else { return None };
        let text =
            format!("{} {} does not report what it applies to: {error}", plugin.kind, plugin.name);
        Some(single_line(&text))
    });
    problems.chain(unknown).collect()
}

fn row(InspectedPlugin { plugin, applies_to }: &InspectedPlugin) -> [String; 4] {
    let (kind, version) = trait_and_version(plugin.kind);
    let applies_to = match applies_to {
        AppliesTo::Nothing => "-".to_owned(),
        AppliesTo::Items(selector) => single_line(&selector_text(selector)),
        AppliesTo::Unknown(_) => "unknown".to_owned(),
    };
    [kind.to_owned(), single_line(plugin.name.as_str()), version.to_owned(), applies_to]
}

fn document(InspectedPlugin { plugin, applies_to }: &InspectedPlugin) -> Value {
    let mut document = identity(plugin.kind, plugin.name.as_str());
    document["command"] = plugin.command.display().to_string().into();
    document["appliesTo"] = match applies_to {
        AppliesTo::Nothing | AppliesTo::Unknown(_) => Value::Null,
        AppliesTo::Items(selector) => json!({
            "includedNamespaces": selector.included_namespaces,
            "excludedNamespaces": selector.excluded_namespaces,
            "includedResources": selector.included_resources,
            "excludedResources": selector.excluded_resources,
            "labelSelector": selector.label_selector,
        }),
    };
    document
}

/// Selector in a few words: `pods; namespaces app-*; labels app=web`.
fn selector_text(selector: &ResourceSelector) -> String {
    let is_all = |words: &[String]| words.is_empty() || words.iter().any(|word| word == "*");
    let mut parts = vec![if is_all(&selector.included_resources) {
        "everything".to_owned()
    } else {
        selector.included_resources.join(", ")
    }];
    let mut add = |lead: &str, words: &[String]| {
        if !words.is_empty() {
            parts.push(format!("{lead} {}", words.join(", ")));
        }
    };
    add("not", &selector.excluded_resources);
    if !is_all(&selector.included_namespaces) {
        add("namespaces", &selector.included_namespaces);
    }
    add("not namespaces", &selector.excluded_namespaces);
    if !selector.label_selector.is_empty() {
        add("labels", std::slice::from_ref(&selector.label_selector));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use bowline_plugin::{Error, Kind};
    use bowline_plugin_host::{Plugin, Problem};

    use super::*;

    #[test]
    fn each_problem_is_one_warning_line() {
        let plugin = |kind, name: &str, applies_to| InspectedPlugin {
            plugin: Plugin { kind, name: name.parse().unwrap(), command: "/p".into() },
            applies_to,
        };
        let broken = AppliesTo::Unknown(Error::unknown("panic: oh\ngoroutine 1"));
        let plugins = vec![
            plugin(Kind::ObjectStore, "x.io/store", AppliesTo::Nothing),
            plugin(Kind::DeleteItemAction, "x.io/delete", broken),
        ];
        let reason = "the binary lists ObjectStore x.io/store twice".to_owned();
        let problems = vec![Problem { command: "/p".into(), reason }];
        let inspection = Inspection { plugins, problems };
        assert_eq!(
            warnings(&inspection),
            [
                "the binary lists ObjectStore x.io/store twice",
                "DeleteItemAction x.io/delete does not report what it applies to: panic: oh goroutine 1",
            ]
        );
        let rows: Vec<[String; 4]> = inspection.plugins.iter().map(row).collect();
        assert_eq!(rows[0], ["ObjectStore", "x.io/store", "v1", "-"]);
        assert_eq!(rows[1], ["DeleteItemAction", "x.io/delete", "v1", "unknown"]);
    }

    #[test]
    fn selector_is_printed_in_short_form() {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let everything = ResourceSelector::default();
        let cases = [
            ("everything", everything.clone()),
            ("everything", ResourceSelector::resources(["*"])),
            ("pods, secrets", ResourceSelector::resources(["pods", "secrets"])),
            (
                "everything; not nodes",
                ResourceSelector { excluded_resources: list(&["nodes"]), ..everything.clone() },
            ),
            (
                "everything",
                ResourceSelector { included_namespaces: list(&["*"]), ..everything.clone() },
            ),
            (
                "everything; labels app in (a, b)",
                ResourceSelector { label_selector: "app in (a, b)".into(), ..everything },
            ),
            (
                "pods, pvc; not nodes; namespaces app-*, x; not namespaces kube-system; labels a!=b",
                ResourceSelector {
                    included_namespaces: list(&["app-*", "x"]),
                    excluded_namespaces: list(&["kube-system"]),
                    included_resources: list(&["pods", "pvc"]),
                    excluded_resources: list(&["nodes"]),
                    label_selector: "a!=b".into(),
                },
            ),
        ];
        for (words, selector) in cases {
            assert_eq!(selector_text(&selector), words);
        }
    }
}
