//! The modules of a package and the paths in their code.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::files;
use super::rust::Parts;

/// A path in the code, from the package's root: `["native", "batch", "Batch"]`.
pub type Names = Vec<String>;

/// A file, as a module.
#[derive(Default)]
pub struct Module {
    pub file: std::path::PathBuf,
    /// Paths that the code mentions, with their lines.
    pub mentions: Vec<(usize, Names)>,
    /// Names that a `use` brings in, and what they stand for.
    uses: HashMap<String, Names>,
    /// Paths whose names a `use path::*` brings in.
    globs: Vec<Names>,
    /// Names of items.
    items: HashSet<String>,
}

/// The modules of a package by their path from its root.
pub struct Modules(pub HashMap<Names, Module>);

impl Modules {
    /// Files that are not tests. A module inside of a file is part of the file.
    pub fn of(package: &str) -> Self {
        let source = files::root().join(package).join("src");
        let files = files::sources(package);
        let has_library = source.join("lib.rs").exists();
        let mut modules = Self(HashMap::new());
        let wanted = |file: &Path| {
            let program = has_library && file.ends_with("src/main.rs");
            !files::is_test(file) && !program
        };
        for file in files.into_iter().filter(|file| wanted(file)) {
            let path = module_path(file.strip_prefix(&source).unwrap());
            let module = Module {
                file,
                ..Module::default()
            };
            modules.0.insert(path, module);
        }
        let paths: Vec<Names> = modules.0.keys().cloned().collect();
        for path in &paths {
            let code = Parts::new(&files::read(&modules.0[path].file)).product_code();
            let children = children(path, &paths);
            let mut module = modules.0.remove(path).unwrap();
            module.read(path, &children, &code);
            modules.0.insert(path.clone(), module);
        }
        modules
    }

    /// The module that a path's item is in. A re-exported item is in the module that defines it.
    pub fn home(&self, path: &[String]) -> Option<&[String]> {
        self.resolve(path, 16)
    }

    fn resolve(&self, path: &[String], depth: usize) -> Option<&[String]> {
        let mut length = path.len();
        while !self.0.contains_key(&path[..length]) {
            length = length.checked_sub(1)?;
        }
        let (home, module) = self.0.get_key_value(&path[..length])?;
        let Some(name) = path.get(length) else {
            return Some(home);
        };
        if depth == 0 || module.items.contains(name) {
            return Some(home);
        }
        if let Some(target) = module.uses.get(name) {
            let full = [target, &path[length + 1..]].concat();
            return self.resolve(&full, depth - 1);
        }
        let from_glob = module.globs.iter().find_map(|glob| {
            let full = [glob, &path[length..]].concat();
            let target = self.resolve(&full, depth - 1)?;
            self.0[target].items.contains(name).then_some(target)
        });
        from_glob.or(Some(home))
    }
}

fn module_path(file: &Path) -> Names {
    let text = file.with_extension("").to_str().unwrap().to_owned();
    let mut names: Names = text.split('/').map(str::to_owned).collect();
    if matches!(names.last().unwrap().as_str(), "lib" | "main" | "mod") {
        names.pop();
    }
    names
}

fn children(path: &Names, paths: &[Names]) -> HashSet<String> {
    let inside = |other: &&Names| other.len() == path.len() + 1 && other.starts_with(path);
    let children = paths.iter().filter(inside);
    children
        .map(|other| other.last().unwrap().clone())
        .collect()
}

impl Module {
    fn read(&mut self, path: &Names, children: &HashSet<String>, code: &str) {
        let tokens = tokens(code);
        let mut reader = Reader {
            module: path,
            children,
            tokens: &tokens,
            at: 0,
        };
        let mut uses = Vec::new();
        while let Some(&(line, token)) = tokens.get(reader.at) {
            reader.at += 1;
            match token {
                "use" => {
                    let before = uses.len();
                    reader.tree(&mut Names::new(), &mut uses);
                    let new = uses[before..].iter();
                    self.mentions
                        .extend(new.map(|(_, path)| (line, path.clone())));
                }
                "struct" | "enum" | "fn" | "trait" | "type" | "const" | "static" | "union"
                | "macro_rules" => {
                    let name = tokens[reader.at..].iter().find(|(_, t)| is_name(t));
                    self.items.extend(name.map(|(_, name)| (*name).to_owned()));
                }
                _ => {}
            }
        }
        for (name, path) in uses {
            if name == "*" {
                self.globs.push(path);
            } else {
                self.uses.insert(name, path);
            }
        }
        self.paths(path, children, &tokens);
    }

    /// Paths outside of `use`, which begin with a word of the language, a child or an imported
    /// name.
    fn paths(&mut self, module: &Names, children: &HashSet<String>, tokens: &[Token<'_>]) {
        for at in 0..tokens.len() {
            let (line, first) = tokens[at];
            let starts = at == 0 || tokens[at - 1].1 != "::";
            if !starts || !is_name(first) || tokens.get(at + 1).map(|t| t.1) != Some("::") {
                continue;
            }
            let mut names = vec![first.to_owned()];
            let mut next = at + 1;
            while let (Some((_, "::")), Some((_, name))) = (tokens.get(next), tokens.get(next + 1))
            {
                if !is_name(name) {
                    break;
                }
                names.push((*name).to_owned());
                next += 2;
            }
            if let Some(target) = self.uses.get(first) {
                names.splice(..1, target.iter().cloned());
            } else if let Some(path) = absolute(module, children, &names) {
                names = path;
            } else {
                continue;
            }
            self.mentions.push((line, names));
        }
    }
}

/// A path from the package's root; `None` for one into another package.
fn absolute(module: &Names, children: &HashSet<String>, names: &[String]) -> Option<Names> {
    let mut base = module.clone();
    let mut rest = names;
    match names.first()?.as_str() {
        "crate" => base.clear(),
        "self" | "super" => {}
        first if children.contains(first) => return Some([&base, rest].concat()),
        _ => return None,
    }
    while let Some(first) = rest.first() {
        match first.as_str() {
            "crate" | "self" => {}
            "super" => drop(base.pop()),
            _ => break,
        }
        rest = &rest[1..];
    }
    Some([&base, rest].concat())
}

type Token<'a> = (usize, &'a str);

fn is_name(token: &str) -> bool {
    token.starts_with(|char: char| char.is_alphabetic() || char == '_')
}

/// Names, `::` and single marks, with their lines.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (n, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let in_name = |char: char| char.is_alphanumeric() || char == '_';
            let length = if in_name(first) {
                rest.find(|char| !in_name(char)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push((n + 1, &rest[..length]));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

struct Reader<'a> {
    module: &'a Names,
    children: &'a HashSet<String>,
    tokens: &'a [Token<'a>],
    at: usize,
}

impl Reader<'_> {
    /// The rest of a `use`, as pairs of a name and the path that it stands for.
    fn tree(&mut self, prefix: &mut Names, out: &mut Vec<(String, Names)>) {
        let depth = prefix.len();
        while let Some(&(_, token)) = self.tokens.get(self.at) {
            match token {
                "{" => {
                    self.at += 1;
                    loop {
                        self.tree(prefix, out);
                        let separator = self.tokens.get(self.at).map(|t| t.1);
                        self.at += 1;
                        if separator != Some(",") {
                            break;
                        }
                    }
                    prefix.truncate(depth);
                    return;
                }
                "::" => {}
                "*" => {
                    self.leaf("*", prefix, out);
                    self.at += 1;
                    prefix.truncate(depth);
                    return;
                }
                name if is_name(name) && name != "as" => prefix.push(name.to_owned()),
                _ => break,
            }
            self.at += 1;
        }
        if prefix.len() > depth {
            let mut name = prefix.last().unwrap().clone();
            if name == "self" {
                prefix.pop();
                name = prefix.last().cloned().unwrap_or_default();
            }
            if self.tokens.get(self.at).map(|t| t.1) == Some("as") {
                name = self.tokens[self.at + 1].1.to_owned();
                self.at += 2;
            }
            self.leaf(&name, prefix, out);
        }
        prefix.truncate(depth);
    }

    fn leaf(&self, name: &str, path: &Names, out: &mut Vec<(String, Names)>) {
        if let Some(path) = absolute(self.module, self.children, path) {
            out.push((name.to_owned(), path));
        }
    }
}

#[test]
fn a_use_is_read() {
    let tokens = tokens("super::a::{self, b::*, c as d}, e::F");
    let children = HashSet::from(["e".to_owned()]);
    let mut reader = Reader {
        module: &vec!["m".to_owned()],
        children: &children,
        tokens: &tokens,
        at: 0,
    };
    let mut out = Vec::new();
    reader.tree(&mut Names::new(), &mut out);
    let out: Vec<_> = out
        .iter()
        .map(|(n, path)| format!("{n}={}", path.join(".")))
        .collect();
    assert_eq!(out, ["a=a", "*=a.b", "d=a.c"]);
}
