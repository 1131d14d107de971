//! Output of a plan, for people and for programs.

use bowline_engine::restore::plan::{PlanEntry, PlanVerdict, RestorePlan};
use bowline_plugin::ResourceIdentifier;
use serde_json::{Map, Value, json};

use crate::describe::section;
use crate::exit::Exit;
use crate::key_value_page::KeyValuePage;
use crate::listing::{self, ObjectFormat};
use crate::output::{self, strip_control_chars};

/// Shows why a restore would be rejected as a whole.
pub(super) fn show_refused(
    restore: &str,
    errors: &[String],
    output: Option<ObjectFormat>,
) -> anyhow::Result<Exit> {
    if let Some(format) = output {
        let document = json!({"restore": restore, "wouldFail": true, "validationErrors": errors});
        output::print_data(listing::format_value(&document, format)?)?;
    }
    output::print_message(format_args!("restore `{restore}` would fail validation and never run"));
    for error in errors {
        output::print_message(format_args!("validation error: {}", strip_control_chars(error)));
    }
    Ok(Exit::Failed)
}

pub(super) fn show_plan(
    restore: &str,
    backup: &str,
    plan: &RestorePlan,
    output: Option<ObjectFormat>,
) -> anyhow::Result<()> {
    match output {
        Some(format) => {
            output::print_data(listing::format_value(&document(restore, backup, plan), format)?)?;
        }
        None => output::print_data(text(plan))?,
    }
    for line in summary_lines(restore, backup, plan) {
        output::print_message(line);
    }
    Ok(())
}

fn text(plan: &RestorePlan) -> String {
    let row = |entry: &PlanEntry| {
        let cells = [
            verdict_text(entry.verdict).to_owned(),
            resource(&entry.id),
            name(entry),
            entry.reason.split_whitespace().collect::<Vec<_>>().join(" "),
        ];
        cells.map(|cell| strip_control_chars(&cell))
    };
    let mut text = String::new();
    if !plan.entries.is_empty() {
        let rows = plan.entries.iter().map(row).collect();
        text.push_str(&output::table(["VERDICT", "RESOURCE", "NAME", "REASON"], rows));
    }
    for (key, messages) in [("Warnings", &plan.results.warnings), ("Errors", &plan.results.errors)]
    {
        if messages.count() > 0 {
            let mut page = KeyValuePage::default();
            section::messages(&mut page, key, messages);
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(gap);
            text.push_str(&page.finish());
        }
    }
    text
}

/// Lines about the plan as a whole.
fn summary_lines(restore: &str, backup: &str, plan: &RestorePlan) -> Vec<String> {
    let built_in = match plan.not_run.as_slice() {
        [] => String::new(),
        names => format!("{} (cluster lookups); ", names.join(", ")),
    };
    let counts = PlanVerdict::ALL
        .map(|verdict| format!("{} {}", verdict_text(verdict), plan.count(verdict)));
    let errors = match plan.results.errors.count() {
        0 => String::new(),
        1 => "; 1 other error".to_owned(),
        count => format!("; {count} other errors"),
    };
    vec![
        format!("skipped in a dry run: {built_in}plugin actions (known only to the server); hooks"),
        format!("restore `{restore}` of backup `{backup}`: {}{errors}", counts.join(", ")),
        "nothing was changed".to_owned(),
    ]
}

fn document(restore: &str, backup: &str, plan: &RestorePlan) -> Value {
    let entry = |entry: &PlanEntry| {
        let PlanEntry { id, target, verdict, reason } = entry;
        let target = target.as_ref().map(|target| {
            json!({
                "apiVersion": target.api_version,
                "kind": target.kind,
                "namespace": target.namespace,
                "name": target.name,
            })
        });
        json!({
            "verdict": verdict_key(*verdict),
            "reason": reason,
            "resource": resource(id),
            "namespace": id.namespace,
            "name": id.name,
            "target": target,
        })
    };
    let counts = PlanVerdict::ALL
        .map(|verdict| (verdict_key(verdict).to_owned(), plan.count(verdict).into()));
    json!({
        "restore": restore,
        "backup": backup,
        "wouldFail": plan.would_fail(),
        "counts": Map::from_iter(counts),
        "objects": plan.entries.iter().map(entry).collect::<Vec<_>>(),
        "warnings": plan.results.warnings,
        "errors": plan.results.errors,
        "actionsNotRun": plan.not_run,
    })
}

/// Word for people.
fn verdict_text(verdict: PlanVerdict) -> &'static str {
    match verdict {
        PlanVerdict::Create => "create",
        PlanVerdict::Update => "update",
        PlanVerdict::Skip => "skip",
        PlanVerdict::Refuse => "refuse",
        PlanVerdict::NotValidated => "not validated",
    }
}

/// Key for programs.
fn verdict_key(verdict: PlanVerdict) -> &'static str {
    match verdict {
        PlanVerdict::NotValidated => "notValidated",
        verdict => verdict_text(verdict),
    }
}

fn resource(id: &ResourceIdentifier) -> String {
    match id.group.as_str() {
        "" => id.resource.clone(),
        group => format!("{}.{group}", id.resource),
    }
}

/// Name in the cluster, and in the backup if that differs.
fn name(entry: &PlanEntry) -> String {
    let join = |namespace: &str, name: &str| match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    let from = join(&entry.id.namespace, &entry.id.name);
    let to = entry.target.as_ref().map(|target| join(&target.namespace, &target.name));
    match to {
        Some(to) if to != from => format!("{to} (from {from})"),
        _ => from,
    }
}

#[cfg(test)]
mod tests {
    use bowline_engine::restore::plan::PlanTarget;
    use bowline_store::file::{Messages, Results};

    use super::*;

    fn entry(kind: &str, from: &str, to: &str, verdict: PlanVerdict, reason: &str) -> PlanEntry {
        let split = |name: &str| {
            let (namespace, name) = name.split_once('/').unwrap_or(("", name));
            (namespace.to_owned(), name.to_owned())
        };
        let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
        let (namespace, name) = split(from);
        let id = ResourceIdentifier {
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace,
            name,
        };
        let target = (!to.is_empty()).then(|| {
            let (namespace, name) = split(to);
            PlanTarget { api_version: "v1".to_owned(), kind: "Kind".to_owned(), namespace, name }
        });
        PlanEntry { id, target, verdict, reason: reason.to_owned() }
    }

    fn sample() -> RestorePlan {
        let mut errors = Messages::default();
        errors.add("shop", "configmaps/a: a resource modifier failed: no");
        RestorePlan {
            entries: vec![
                entry("namespaces", "shop", "copy", PlanVerdict::Create, ""),
                entry("configmaps", "shop/a", "copy/a", PlanVerdict::Create, ""),
                entry(
                    "deployments.apps",
                    "db/b",
                    "db/b",
                    PlanVerdict::Update,
                    "it differs in spec",
                ),
                entry(
                    "secrets",
                    "db/c",
                    "db/c",
                    PlanVerdict::Skip,
                    "the object exists and is identical",
                ),
                entry(
                    "services",
                    "db/d",
                    "db/d",
                    PlanVerdict::Refuse,
                    "it is\u{1b} invalid:\n  no",
                ),
                entry(
                    "widgets.x.io",
                    "db/e",
                    "",
                    PlanVerdict::NotValidated,
                    "the kind is not served",
                ),
            ],
            results: Results { errors, warnings: Messages::default() },
            not_run: vec!["velero.io/secret".to_owned()],
        }
    }

    #[test]
    fn a_plan_for_people() {
        insta::assert_snapshot!(format!(
            "{}---\n{}",
            text(&sample()),
            summary_lines("r", "b", &sample()).join("\n")
        ));
    }

    #[test]
    fn a_plan_for_programs() {
        insta::assert_snapshot!(format!("{:#}", document("r", "b", &sample())));
    }

    #[test]
    fn empty_plan_is_reported() {
        let plan =
            RestorePlan { entries: Vec::new(), results: Results::default(), not_run: Vec::new() };
        assert_eq!(text(&plan), "");
        let [actions, counts, end] = summary_lines("r", "b", &plan).try_into().unwrap();
        assert_eq!(
            actions,
            "skipped in a dry run: plugin actions (known only to the server); hooks"
        );
        let expected = "restore `r` of backup `b`: create 0, update 0, skip 0, refuse 0, not \
                        validated 0";
        assert_eq!((counts.as_str(), end.as_str()), (expected, "nothing was changed"));
    }
}
