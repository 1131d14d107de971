//! Finds comparisons of the text of errors and states: rewording a message must change no decision.

use std::collections::BTreeMap;
use std::path::Path;

use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Pat, Token};

use super::{is_for_tests, product_files, words};

/// Words in the name of a value that is text for people.
const MESSAGES: [&str; 7] =
    ["error", "reason", "message", "why", "description", "failure", "cause"];

/// Words in the name of a value that may be text for people, or of a format: only comparisons with prose count.
const TEXTS: [&str; 3] = ["text", "line", "full"];

/// Words in the name of a text that is given to a function to be searched. An error is given to one to be reported.
const SEARCHED: [&str; 4] = ["message", "text", "line", "full"];

/// Methods that ask for a piece of a text.
const METHODS: [&str; 9] = [
    "starts_with",
    "ends_with",
    "contains",
    "strip_prefix",
    "strip_suffix",
    "split_once",
    "rsplit_once",
    "find",
    "eq",
];

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
const REPORTED_TO_USERS: &str = "a check of what users are told, like the assertion of a test";
const ONE_TEXT: &str = "Velero's file of operations has one text for a failure, and no kind";
const SHARED_WORDING: &str =
    "the benchmark counts reports of the product, which writes them with the same constants";
const GO_RUNTIME: &str = "the first line that Go's runtime writes when a program crashes";

const EXCEPTIONS: &[Exception] = &[
    Exception { file: "simulation/src/check.rs", text: "LEFT_OVER", reason: REPORTED_TO_USERS },
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
    Exception { file: "plan/refusal.rs", text: " \"", reason: API_MESSAGE },
    Exception {
        file: "plan/refusal.rs",
        text: "error looking up service account ",
        reason: API_MESSAGE,
    },
    Exception { file: "plan/refusal.rs", text: "no PriorityClass with name ", reason: API_MESSAGE },
    Exception { file: "plan/refusal.rs", text: " was found", reason: API_MESSAGE },
    Exception { file: "operation/failure.rs", text: "CANCELED_PREFIX", reason: ONE_TEXT },
    Exception { file: "operation/failure.rs", text: "TIMED_OUT_PREFIX", reason: ONE_TEXT },
    Exception { file: "operation/failure.rs", text: "SNAPSHOT_NOT_COMPLETED", reason: ONE_TEXT },
    Exception {
        file: "server/src/run_state.rs",
        text: "CANCELED_PREFIX",
        reason: "Velero's status has neither a phase nor a field for a canceled run",
    },
    Exception {
        file: "schedule/cron.rs",
        text: "@every ",
        reason: "a keyword of cron expressions, not a message",
    },
    Exception {
        file: "s3/error.rs",
        text: "status code: ",
        reason: "the status of a response is in a private type of `object_store`",
    },
    Exception { file: "plugin-host/src/log.rs", text: "panic: ", reason: GO_RUNTIME },
    Exception { file: "plugin-host/src/log.rs", text: "fatal error: ", reason: GO_RUNTIME },
    Exception { file: "evidence/volumes.rs", text: "LEFT_OVER", reason: SHARED_WORDING },
    Exception { file: "evidence/volumes.rs", text: "V1_CANNOT_SEARCH", reason: SHARED_WORDING },
    Exception {
        file: "testbed/src/gobuild.rs",
        text: "go: ",
        reason: "how `go` marks its own lines among those of a compiler",
    },
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

/// String constants by name.
type Constants = BTreeMap<String, String>;

/// Collects the string constants of a file, also those within functions.
#[derive(Default)]
struct ConstantReader {
    found: Constants,
}

impl<'ast> Visit<'ast> for ConstantReader {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        if let Some(text) = literal(&item.expr) {
            self.found.insert(item.ident.to_string(), text);
        }
    }
}

/// Collects the texts with which errors, reasons and messages are compared.
struct Comparisons<'a> {
    /// Constants of the file, and those that it may import.
    constants: [&'a Constants; 2],
    found: Vec<String>,
}

impl Comparisons<'_> {
    fn compare(&mut self, value: &Expr, with: &Expr) {
        if let Some(text) = text_of(with) {
            self.add(value, text);
        }
    }

    /// Adds a text that is compared with a value, if it decides by the wording of a message.
    fn add(&mut self, value: &Expr, text: String) {
        let resolved = self.constants.iter().find_map(|constants| constants.get(&text));
        let is_prose_text = || has_word(value, &TEXTS) && is_prose(resolved.unwrap_or(&text));
        if has_word(value, &MESSAGES) || is_prose_text() {
            self.found.push(text);
        }
    }

    fn add_pattern(&mut self, value: &Expr, pattern: &Pat) {
        let mut texts = Vec::new();
        collect_pattern(pattern, &mut texts);
        for text in texts {
            self.add(value, text);
        }
    }
}

/// True for a piece of a sentence; names, keywords and signs of a format have no letter beside a space.
fn is_prose(text: &str) -> bool {
    text.contains(' ') && text.contains(char::is_alphabetic)
}

impl<'ast> Visit<'ast> for Comparisons<'_> {
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

    /// A helper such as `between(message, "no class ", " was found")`. The arguments of a message are not prose; the
    /// prose is in the message.
    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let mut arguments = call.args.iter();
        if let Some(value) = arguments.next()
            && has_word(value, &SEARCHED)
        {
            self.found.extend(arguments.filter_map(literal).filter(|text| is_prose(text)));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_match(&mut self, expression: &'ast syn::ExprMatch) {
        for arm in &expression.arms {
            self.add_pattern(&expression.expr, &arm.pat);
        }
        visit::visit_expr_match(self, expression);
    }

    /// The contents of a macro are not parsed: an expression list is tried, and the form of `matches!`.
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
            self.add_pattern(&value, &pattern);
            if let Some(guard) = &guard {
                Comparisons::visit_owned(self, guard);
            }
        }
    }
}

impl Comparisons<'_> {
    /// Visits an expression that is not part of the file's tree.
    fn visit_owned(&mut self, expression: &Expr) {
        let mut inner = Comparisons { constants: self.constants, found: Vec::new() };
        inner.visit_expr(expression);
        self.found.append(&mut inner.found);
    }
}

/// True if the name of a value has one of these words: `error.to_string()`, `status.failure_reason`, `error_chain(e)`.
fn has_word(value: &Expr, out: &[&str]) -> bool {
    let named = |name: &syn::Ident| {
        words(&name.to_string()).iter().any(|word| out.contains(&word.as_str()))
    };
    let has_word = |value: &Expr| has_word(value, out);
    match value {
        Expr::Path(path) => path.path.segments.last().is_some_and(|last| named(&last.ident)),
        Expr::Field(field) => {
            matches!(&field.member, syn::Member::Named(name) if named(name))
                || matches!(field.member, syn::Member::Unnamed(_)) && has_word(&field.base)
        }
        // `kind()` and the like are the typed parts of an error.
        Expr::MethodCall(call) if CODES.iter().any(|code| call.method == code) => false,
        Expr::MethodCall(call) => named(&call.method) || has_word(&call.receiver),
        Expr::Call(call) => has_word(&call.func) || call.args.iter().any(has_word),
        Expr::Reference(reference) => has_word(&reference.expr),
        Expr::Unary(unary) => has_word(&unary.expr),
        Expr::Paren(paren) => has_word(&paren.expr),
        Expr::Try(try_) => has_word(&try_.expr),
        Expr::Await(await_) => has_word(&await_.base),
        Expr::Index(index) => has_word(&index.expr),
        _ => false,
    }
}

/// The text of a string literal.
fn literal(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// A string literal, or the name of a constant; also within `Some(…)` and `&…`.
fn text_of(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(_) => literal(value),
        Expr::Path(path) => {
            let name = path.path.segments.last()?.ident.to_string();
            let is_constant = name.len() > 1 && name.chars().all(|c| !c.is_lowercase() || c == '_');
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

fn constants(file: &syn::File) -> Constants {
    let mut reader = ConstantReader::default();
    reader.visit_file(file);
    reader.found
}

/// Comparisons in a file, given the constants of all files.
fn comparisons(file: &syn::File, all_constants: &Constants) -> Vec<String> {
    let own = constants(file);
    let mut comparisons = Comparisons { constants: [&own, all_constants], found: Vec::new() };
    comparisons.visit_file(file);
    comparisons.found
}

#[test]
fn no_text_of_an_error_or_state_is_compared() {
    let (mut wrong, mut used) = (Vec::new(), vec![false; EXCEPTIONS.len()]);
    let files = product_files();
    let all_constants: Constants = files.iter().flat_map(|(_, file)| constants(file)).collect();
    for (path, file) in files {
        for text in comparisons(&file, &all_constants) {
            let exception = EXCEPTIONS
                .iter()
                .position(|exception| path.ends_with(exception.file) && exception.text == text);
            match exception {
                Some(index) => used[index] = true,
                // The presence of a text does not depend on its wording.
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
        let file = syn::parse_str(&format!("fn f() {{ {statement} }}")).unwrap();
        comparisons(&file, &Constants::new()).len()
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
        r#"let (_, end) = full.split_once("status code: ")?;"#,
        r#"line.contains("was left behind");"#,
        r#"const LATE: &str = "too late"; text.starts_with(LATE);"#,
        r#"between(message, "no class ", " was found");"#,
        r#"let is = |error: &Error| error.message().strip_prefix("it ").is_some();"#,
    ] {
        assert_ne!(found(wrong), 0, "{wrong}");
    }
    for fine in [
        r#"name.starts_with("velero-");"#,
        r#"text.strip_prefix("@every");"#,
        r#"match text { "true" => {} _ => {} }"#,
        r#"const SIGN: &str = "s3:"; text.starts_with(SIGN);"#,
        r#"warn(&id, "the file is gone");"#,
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
    assert!(comparisons(&syn::parse_str(in_tests).unwrap(), &Constants::new()).is_empty());
    assert!(Path::new("crates/server/src/patch.rs").ends_with("src/patch.rs"));
}
