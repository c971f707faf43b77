//! The modules of each crate have no import cycles, neither direct nor through other modules.

use crate::support::rust_files;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Path of names from the crate's root to a module or to an item in a module.
type Place = Vec<String>;

/// The imports of one file within its crate.
struct Imports {
    /// The module that is being visited: the file's module, or a module inside the file.
    module: Place,
    /// Imported paths from the crate's root, each with a flag for items that are re-exported (`pub use`).
    paths: Vec<(Place, bool)>,
    /// Names of the modules in separate files that only tests use.
    tests: Vec<String>,
}

impl Imports {
    fn note(&mut self, path: &[String], is_public: bool) {
        let names = path.iter().map(String::as_str);
        let ups = names.clone().take_while(|name| *name == "super").count();
        let mut place = self.module.clone();
        match path[0].as_str() {
            "crate" => place.clear(),
            "super" => place.truncate(place.len().saturating_sub(ups)),
            "self" => {}
            // The path begins with a child module or another crate. For another crate, no file is found later.
            first => place.push(first.to_owned()),
        }
        place.extend(names.skip(ups.max(1)).map(str::to_owned));
        self.paths.push((place, is_public));
    }

    fn note_tree(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_tree(&path.tree, &with(&path.ident), is_public),
            syn::UseTree::Name(name) => self.note(&with(&name.ident), is_public),
            syn::UseTree::Rename(name) => self.note(&with(&name.ident), is_public),
            syn::UseTree::Glob(_) => self.note(before, is_public),
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.note_tree(tree, before, is_public);
                }
            }
        }
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("cfg")
            && it
                .parse_args::<syn::Meta>()
                .is_ok_and(|meta| names_test(&meta))
    })
}

/// Reports whether a `cfg` condition is `test`, or a combination that requires `test`.
fn names_test(meta: &syn::Meta) -> bool {
    let syn::Meta::List(list) = meta else {
        return meta.path().is_ident("test");
    };
    let each = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    list.path.is_ident("all")
        && list
            .parse_args_with(each)
            .is_ok_and(|all| all.iter().any(names_test))
}

impl<'ast> Visit<'ast> for Imports {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        match (is_for_tests(&item.attrs), &item.content) {
            (true, None) => self.tests.push(item.ident.to_string()),
            (true, Some(_)) => {}
            (false, _) => {
                self.module.push(item.ident.to_string());
                visit::visit_item_mod(self, item);
                self.module.pop();
            }
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            let is_public = !matches!(item.vis, syn::Visibility::Inherited);
            self.note_tree(&item.tree, &[], is_public);
        }
    }

    /// Skips `pub(super)`, which imports nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|it| it.ident.to_string())
            .collect();
        if matches!(names[0].as_str(), "crate" | "super") {
            self.note(&names, false);
        }
        visit::visit_path(self, path);
    }
}

/// Returns the module of a file.
fn module_of(file: &Path, sources: &Path) -> Place {
    let inside = file.strip_prefix(sources).unwrap().with_extension("");
    let names = inside.iter().map(|it| it.to_str().unwrap().to_owned());
    let mut names: Place = names.collect();
    if matches!(names.last().unwrap().as_str(), "mod" | "lib") {
        names.pop();
    }
    names
}

/// Returns the modules of a crate, each with those that it imports from.
fn imports(sources: &Path) -> BTreeMap<Place, BTreeSet<Place>> {
    let mut files = Vec::new();
    rust_files(sources, &mut files);
    let mut modules = BTreeMap::new();
    let mut tests: Vec<Place> = Vec::new();
    let is_wanted = |it: &&PathBuf| {
        let names = it.strip_prefix(sources).unwrap().iter();
        let mut names = names.map(|name| name.to_str().unwrap());
        !names.any(|name| matches!(name, "main.rs" | "tests" | "tests.rs"))
    };
    for file in files.iter().filter(is_wanted) {
        let parsed = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
        let module = module_of(file, sources);
        let mut imports = Imports {
            module: module.clone(),
            paths: Vec::new(),
            tests: Vec::new(),
        };
        imports.visit_file(&parsed);
        let names = imports.tests.into_iter();
        tests.extend(names.map(|name| [&module[..], &[name]].concat()));
        modules.insert(module, imports.paths);
    }
    modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    // For an item re-exported by a module: the file that contains it.
    let mut passed_on: BTreeMap<Place, Place> = BTreeMap::new();
    for (module, paths) in &modules {
        for (place, _) in paths.iter().filter(|it| it.1) {
            let by = [&module[..], &place[place.len().saturating_sub(1)..]].concat();
            if by != *place {
                passed_on.insert(by, place.clone());
            }
        }
    }
    let file_of = |place: &Place| {
        let mut place = place.clone();
        for _ in 0..8 {
            let known = (0..=place.len()).rev();
            let module = known
                .map(|end| &place[..end])
                .find(|it| modules.contains_key(*it))?;
            let item = &place[..place.len().min(module.len() + 1)];
            match passed_on.get(item) {
                Some(to) => place = to.clone(),
                None => return Some(module.to_vec()),
            }
        }
        None
    };
    let from = modules.iter().map(|(module, paths)| {
        let files = paths.iter().filter_map(|(place, is_public)| {
            let file = file_of(place)?;
            // A module that only re-exports its children's items does not use them.
            let passes_on = *is_public && file.starts_with(module);
            (file != *module && !passes_on).then_some(file)
        });
        (module.clone(), files.collect())
    });
    from.collect()
}

fn reached(from: &Place, imports: &BTreeMap<Place, BTreeSet<Place>>) -> BTreeSet<Place> {
    let mut found: BTreeSet<Place> = BTreeSet::new();
    let mut next = vec![from.clone()];
    while let Some(module) = next.pop() {
        for to in &imports[&module] {
            if found.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    found
}

/// Returns the import cycles of a crate's modules, each as a line.
fn circles(sources: &Path) -> Vec<String> {
    let imports = imports(sources);
    let reached: BTreeMap<&Place, BTreeSet<Place>> = imports
        .keys()
        .map(|module| (module, reached(module, &imports)))
        .collect();
    let mut found = BTreeSet::new();
    for module in imports.keys().filter(|it| reached[it].contains(*it)) {
        let circle = reached[module]
            .iter()
            .filter(|it| reached[it].contains(module));
        let names = circle.map(|it| match it.is_empty() {
            true => "lib".to_owned(),
            false => it.join("::"),
        });
        found.insert(names.collect::<Vec<_>>().join(" "));
    }
    found.into_iter().collect()
}

#[test]
fn no_crate_has_import_cycles_between_its_modules() {
    let mut found = Vec::new();
    for entry in fs::read_dir("crates").unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let lines = circles(&path.join("src"));
        found.extend(lines.into_iter().map(|line| format!("{name}: {line}")));
    }
    found.sort();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn an_import_cycle_through_a_reexport_is_found() {
    let folder = crate::support::scratch();
    for (file, text) in [
        (
            "lib.rs",
            "mod a; mod b; mod c; pub use a::A; #[cfg(test)] mod tests;",
        ),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() { crate::c::g() }"),
        ("c.rs", "pub fn g() { let _: Option<crate::A> = None; }"),
        ("tests.rs", "use crate::a::A; use crate::b::B;"),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    assert_eq!(circles(folder.path()), ["a b c"]);
    fs::write(
        folder.path().join("c.rs"),
        "pub fn g() {} #[cfg(test)] mod t { use crate::A; }",
    )
    .unwrap();
    assert_eq!(circles(folder.path()), [""; 0]);
}
