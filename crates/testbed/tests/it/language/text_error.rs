//! Finds errors that are text: errors are types until text leaves the program.

use syn::visit::{self, Visit};
use syn::{GenericArgument, PathArguments, Type};

use super::{is_for_tests, product_files};

/// Collects functions and type aliases whose error is text.
#[derive(Default)]
struct TextErrors {
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for TextErrors {
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

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let syn::ReturnType::Type(_, output) = &signature.output
            && has_text_error(output)
        {
            self.found.push(signature.ident.to_string());
        }
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if has_text_error(&item.ty) {
            self.found.push(item.ident.to_string());
        }
    }
}

/// True if a type is, or contains, a `Result` whose error is text.
fn has_text_error(type_: &Type) -> bool {
    struct Results(bool);
    impl<'ast> Visit<'ast> for Results {
        fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
            let arguments = types_of(segment);
            if segment.ident == "Result" && arguments.get(1).is_some_and(|error| is_text(error)) {
                self.0 = true;
            }
            visit::visit_path_segment(self, segment);
        }
    }
    let mut results = Results(false);
    results.visit_type(type_);
    results.0
}

/// True for `String`, `&str`, `Cow<str>`, and lists of these.
fn is_text(type_: &Type) -> bool {
    match type_ {
        Type::Reference(reference) => is_text(&reference.elem),
        Type::Slice(slice) => is_text(&slice.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            let is_container =
                ["Vec", "Cow", "Box", "Arc", "Rc"].iter().any(|name| last.ident == name);
            last.ident == "String"
                || last.ident == "str"
                || is_container && types_of(last).iter().any(|element| is_text(element))
        }),
        _ => false,
    }
}

fn types_of(segment: &syn::PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return Vec::new();
    };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(type_) => Some(type_),
        _ => None,
    });
    types.collect()
}

fn text_errors(file: &syn::File) -> Vec<String> {
    let mut errors = TextErrors::default();
    errors.visit_file(file);
    errors.found
}

#[test]
fn no_function_returns_text_as_its_error() {
    let mut wrong = Vec::new();
    for (path, file) in product_files() {
        let found = text_errors(&file);
        wrong.extend(found.iter().map(|name| format!("{}: `{name}`", path.display())));
    }
    assert!(
        wrong.is_empty(),
        "these return text as their error; make it an enum with `thiserror`:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn text_as_an_error_is_recognized() {
    for wrong in [
        "fn f() -> Result<(), String> {}",
        "async fn f() -> Result<u8, Vec<String>> {}",
        "fn f() -> Result<u8, &'static str> {}",
        "fn f() -> std::result::Result<u8, Cow<'static, str>> {}",
        "fn f() -> anyhow::Result<Result<u8, String>> {}",
        "fn f() -> impl Future<Output = Result<u8, String>> {}",
        "type Fetched<T> = Result<T, String>;",
        "impl A { fn f(&self) -> Option<Result<u8, String>> {} }",
        "trait A { fn f(&self) -> Result<u8, Box<str>>; }",
        "mod inner { fn f() -> Result<(), String> {} }",
    ] {
        assert_eq!(text_errors(&syn::parse_str(wrong).unwrap()).len(), 1, "{wrong}");
    }
    for fine in [
        "fn f() -> Result<String, Error> {}",
        "fn f() -> anyhow::Result<String> {}",
        "fn f() -> anyhow::Result<BTreeMap<String, String>> {}",
        "fn f() -> Result<Vec<String>, Vec<Error>> {}",
        "#[cfg(test)] mod tests { fn f() -> Result<(), String> {} }",
        "#[test] fn f() -> Result<(), String> {}",
    ] {
        assert_eq!(text_errors(&syn::parse_str(fine).unwrap()), [""; 0], "{fine}");
    }
}
