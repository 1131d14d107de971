//! Rewording a message changes no decision: the text of an error or of a state is not compared.

use std::path::Path;

use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, Token};

use super::{is_for_tests, product_files, words};

/// Words in the name of a value that is text for people.
const TEXTS: [&str; 7] = ["error", "reason", "message", "why", "description", "failure", "cause"];

/// Methods that ask for a piece of a text.
const METHODS: [&str; 6] =
    ["starts_with", "ends_with", "contains", "strip_prefix", "strip_suffix", "eq"];

/// Methods that return the code of an error.
const CODES: [&str; 4] = ["kind", "code", "class", "raw_os_error"];

/// A comparison that has no typed form.
struct Exception {
    /// The last parts of the path of the file.
    file: &'static str,
    /// The text, or the name of the constant with it.
    text: &'static str,
    reason: &'static str,
}

const API_REASON: &str = "a StatusReason, which the API server defines as a string";
const API_MESSAGE: &str = "the API server has no code or reason for it, only a message";

const EXCEPTIONS: &[Exception] = &[
    Exception { file: "cluster/src/lib.rs", text: "AlreadyExists", reason: API_REASON },
    Exception { file: "cluster/src/lib.rs", text: "Conflict", reason: API_REASON },
    Exception { file: "src/patch.rs", text: "AlreadyExists", reason: API_REASON },
    Exception { file: "src/patch.rs", text: "Conflict", reason: API_REASON },
    Exception { file: "plan/refusal.rs", text: "does not support dry run", reason: API_MESSAGE },
    Exception { file: "plan/refusal.rs", text: ": User \"", reason: API_MESSAGE },
    Exception { file: "plan/refusal.rs", text: "\" cannot ", reason: API_MESSAGE },
    Exception {
        file: "plan/refusal.rs",
        text: "is attempting to grant RBAC permissions not currently held",
        reason: API_MESSAGE,
    },
    Exception { file: "plan/refusal.rs", text: "\" not found", reason: API_MESSAGE },
    Exception {
        file: "operation/record.rs",
        text: "NOTHING_TO_UPLOAD",
        reason: "Velero's file of operations has no other field that tells a completed upload from one without work",
    },
    Exception {
        file: "plugin/src/error.rs",
        text: "NOT_ASYNCHRONOUS",
        reason: "plugins of Velero's framework return this error with the code Unknown",
    },
    Exception {
        file: "testbed/src/process.rs",
        text: "address already in use",
        reason: "a line of the log of etcd or kube-apiserver, which end with 1 whatever failed",
    },
];

/// Collects the texts with which errors, reasons and messages are compared.
#[derive(Default)]
struct Comparisons {
    found: Vec<String>,
}

impl Comparisons {
    fn compare(&mut self, value: &Expr, with: &Expr) {
        if is_message(value) {
            self.found.extend(text_of(with));
        }
    }
}

impl<'ast> Visit<'ast> for Comparisons {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if let Some(argument) = call.args.first()
            && METHODS.iter().any(|method| call.method == method)
        {
            self.compare(&call.receiver, argument);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)) {
            self.compare(&binary.left, &binary.right);
            self.compare(&binary.right, &binary.left);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        if is_message(&expression.expr) {
            for arm in &expression.arms {
                collect_pattern(&arm.pat, &mut self.found);
            }
        }
        visit::visit_expr_match(self, expression);
    }

    /// What stands in a macro is not parsed: an expression list is tried, and the form of `matches!`.
    fn visit_macro(&mut self, macro_: &'ast syn::Macro) {
        let list = Punctuated::<Expr, Token![,]>::parse_terminated;
        if !macro_.path.is_ident("matches") {
            let expressions = list.parse2(macro_.tokens.clone()).unwrap_or_default();
            for expression in &expressions {
                Comparisons::visit_owned(self, expression);
            }
            return;
        }
        let matches = |input: syn::parse::ParseStream<'_>| {
            let value: Expr = input.parse()?;
            input.parse::<Token![,]>()?;
            let pattern = Pat::parse_multi_with_leading_vert(input)?;
            let guard = input.parse::<Option<Token![if]>>()?.map(|_| input.parse::<Expr>());
            input.parse::<Option<Token![,]>>()?;
            Ok((value, pattern, guard.transpose()?))
        };
        if let Ok((value, pattern, guard)) = matches.parse2(macro_.tokens.clone()) {
            if is_message(&value) {
                collect_pattern(&pattern, &mut self.found);
            }
            if let Some(guard) = &guard {
                Comparisons::visit_owned(self, guard);
            }
        }
    }
}

impl Comparisons {
    /// Visits an expression that is not part of the file's tree.
    fn visit_owned(&mut self, expression: &Expr) {
        let mut inner = Comparisons::default();
        inner.visit_expr(expression);
        self.found.append(&mut inner.found);
    }
}

/// True if a value is named like a text for people: `error.to_string()`, `status.failure_reason`, `error_chain(e)`.
fn is_message(value: &Expr) -> bool {
    let has_word = |name: &syn::Ident| {
        words(&name.to_string()).iter().any(|word| TEXTS.contains(&word.as_str()))
    };
    match value {
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| has_word(&last.ident)),
        Expr::Field(field) => {
            matches!(&field.member, syn::Member::Named(name) if has_word(name))
                || matches!(field.member, syn::Member::Unnamed(_)) && is_message(&field.base)
        }
        // `kind()` and the like are the typed parts of an error.
        Expr::MethodCall(call) if CODES.iter().any(|code| call.method == code) => false,
        Expr::MethodCall(call) => has_word(&call.method) || is_message(&call.receiver),
        Expr::Call(call) => is_message(&call.func) || call.args.iter().any(is_message),
        Expr::Reference(reference) => is_message(&reference.expr),
        Expr::Unary(unary) => is_message(&unary.expr),
        Expr::Paren(paren) => is_message(&paren.expr),
        Expr::Try(try_) => is_message(&try_.expr),
        Expr::Await(await_) => is_message(&await_.base),
        Expr::Index(index) => is_message(&index.expr),
        _ => false,
    }
}

/// A string literal, or the name of a constant; also within `Some(…)` and `&…`.
fn text_of(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        Expr::Path(path) => {
            let name = path.path.segments.last()?.ident.to_string();
            let is_constant = name.len() > 1 && name.chars().all(|c| c.is_uppercase() || c == '_');
            is_constant.then_some(name)
        }
        Expr::Call(call) => call.args.iter().find_map(text_of),
        Expr::Reference(reference) => text_of(&reference.expr),
        Expr::Unary(unary) => text_of(&unary.expr),
        Expr::Paren(paren) => text_of(&paren.expr),
        _ => None,
    }
}

fn collect_pattern(pattern: &Pat, found: &mut Vec<String>) {
    match pattern {
        Pat::Lit(syn::PatLit { lit: Lit::Str(text), .. }) => found.push(text.value()),
        Pat::Or(or) => or.cases.iter().for_each(|case| collect_pattern(case, found)),
        Pat::TupleStruct(tuple) => tuple.elems.iter().for_each(|case| collect_pattern(case, found)),
        _ => {}
    }
}

fn comparisons(file: &syn::File) -> Vec<String> {
    let mut comparisons = Comparisons::default();
    comparisons.visit_file(file);
    comparisons.found
}

#[test]
fn no_text_of_an_error_or_state_is_compared() {
    let (mut wrong, mut used) = (Vec::new(), vec![false; EXCEPTIONS.len()]);
    for (path, file) in product_files() {
        for text in comparisons(&file) {
            let exception = EXCEPTIONS
                .iter()
                .position(|exception| path.ends_with(exception.file) && exception.text == text);
            match exception {
                Some(index) => used[index] = true,
                // Whether there is a text at all does not depend on its wording.
                None if text.is_empty() => {}
                None => wrong.push(format!("{}: {text:?}", path.display())),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "a decision depends on these texts; make the error or the state an enum:\n{}",
        wrong.join("\n")
    );
    for (exception, used) in EXCEPTIONS.iter().zip(used) {
        let Exception { file, text, reason } = exception;
        assert!(used, "{file} no longer compares {text:?} ({reason}): remove the exception");
    }
}

#[test]
fn comparisons_of_texts_are_recognized() {
    let found = |statement: &str| {
        comparisons(&syn::parse_str(&format!("fn f() {{ {statement} }}")).unwrap()).len()
    };
    for wrong in [
        r#"failure_reason.starts_with("canceled: ");"#,
        r#"error.to_string().ends_with("gone");"#,
        r#"error_chain(&cause).to_lowercase().contains("certificate");"#,
        r#"status.message == "no";"#,
        r#"if "no" != *status.reason {}"#,
        "why == NO_SNAPSHOT;",
        "operation.description.as_deref() == Some(NOTHING_TO_UPLOAD);",
        r#"matches!(self, Self::Refused { reason, .. } if reason == "Conflict");"#,
        r#"matches!(error.0.as_str(), "full" | "empty");"#,
        r#"match message.as_str() { "no" => {} _ => {} }"#,
        r#"ensure!(error.text.is_empty() || !error_text.contains("x"));"#,
        r#"let is = |error: &Error| error.message().strip_prefix("it ").is_some();"#,
    ] {
        assert_ne!(found(wrong), 0, "{wrong}");
    }
    for fine in [
        r#"name.starts_with("velero-");"#,
        "status.code == 409;",
        "error.raw_os_error() == Some(ENOEXEC);",
        "errors.is_empty();",
        "reason == RefusalReason::Conflict;",
        "message.contains(&name);",
        r#"page.field("error", "reason");"#,
        r#"format!("{error}: {}", "why");"#,
    ] {
        assert_eq!(found(fine), 0, "{fine}");
    }
    let in_tests = r#"#[cfg(test)] mod tests { fn f() { error.contains("x"); } }"#;
    assert!(comparisons(&syn::parse_str(in_tests).unwrap()).is_empty());
    assert!(Path::new("crates/server/src/patch.rs").ends_with("src/patch.rs"));
}
