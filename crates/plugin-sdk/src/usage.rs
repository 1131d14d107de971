//! Usage text for a person who starts a plugin.

use std::fmt::Write as _;

use bowline_plugin::{Kind, Name};

/// Description of the binary, its plugins, and how to use it.
pub(crate) fn usage_text(command: &str, plugins: &[(Kind, Name)]) -> String {
    let width = plugins.iter().map(|(kind, _)| kind.as_str().len()).max().unwrap_or_default();
    let mut list = String::new();
    for (kind, name) in plugins {
        let _ = writeln!(list, "  {kind:width$}  {name}");
    }
    format!(
        "This is a plugin of Bowline and Velero. Their server starts it; by itself it does nothing.

It holds:
{list}
To see what each of them applies to:    bowline plugin inspect {command}
To see whether it keeps its contract:   bowline plugin check {command}
To install it, put it in the plugin folder of the server: /plugins, or its --plugin-dir.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_text_lists_plugins_and_next_steps() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let plugins = [(Kind::ObjectStore, name("a.io/os")), (Kind::DeleteItemAction, name("a/b"))];
        let text = usage_text("./my-plugin", &plugins);
        assert!(
            text.contains("\n  ObjectStore       a.io/os\n  DeleteItemAction  a/b\n"),
            "{text}"
        );
        assert!(text.contains("bowline plugin inspect ./my-plugin\n"), "{text}");
        assert!(text.contains("/plugins"), "{text}");
    }
}
