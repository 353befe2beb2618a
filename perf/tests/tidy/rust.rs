//! A Rust source taken apart into code, comments and string literals.

/// Three texts with the lines and columns of the source; each has spaces where the others have
/// text.
pub struct Parts {
    pub code: String,
    pub comments: String,
    pub strings: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Text,
}

impl Parts {
    pub fn new(source: &str) -> Self {
        let chars: Vec<char> = source.chars().collect();
        let mut parts = Self {
            code: String::new(),
            comments: String::new(),
            strings: String::new(),
        };
        let mut at = 0;
        while at < chars.len() {
            let (kind, length) = token(&chars, at);
            for &char in &chars[at..at + length] {
                parts.push(kind, char);
            }
            at += length;
        }
        parts
    }

    fn push(&mut self, kind: Kind, char: char) {
        let texts = [
            (Kind::Code, &mut self.code),
            (Kind::Comment, &mut self.comments),
            (Kind::Text, &mut self.strings),
        ];
        for (of, text) in texts {
            text.push(if of == kind || char == '\n' {
                char
            } else {
                ' '
            });
        }
    }

    /// The code without items that are for tests only.
    pub fn product_code(&self) -> String {
        let mut code = self.code.clone();
        while let Some(start) = code.find("#[cfg(test)]") {
            let end = start + item_length(&code[start..]);
            let blank: String = code[start..end]
                .chars()
                .map(|char| if char == '\n' { '\n' } else { ' ' })
                .collect();
            code.replace_range(start..end, &blank);
        }
        code
    }
}

/// The length of an item with its attributes: up to its `;`, or to the end of its block.
pub fn item_length(code: &str) -> usize {
    let mut depth = 0_i32;
    for (at, char) in code.char_indices() {
        match char {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(char, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

/// Kind and length of what begins here.
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => (Kind::Comment, until(rest, |c| c == '\n')),
        ['/', '*', ..] => (Kind::Comment, block_comment(rest)),
        ['"', ..] => (Kind::Text, literal(rest, '"')),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => (Kind::Text, literal(rest, '\'')),
        ['r', '"' | '#', ..] if !follows_name(chars, at) => raw_string(rest),
        _ => (Kind::Code, 1),
    }
}

fn follows_name(chars: &[char], at: usize) -> bool {
    // The `b` and the `c` of a byte or C string begin no name of more letters.
    let is_name = |at: usize| chars[at].is_alphanumeric() || chars[at] == '_';
    let prefixed = at >= 1 && matches!(chars[at - 1], 'b' | 'c');
    let before = if prefixed { at - 1 } else { at };
    before >= 1 && is_name(before - 1)
}

fn until(rest: &[char], ends: impl Fn(char) -> bool) -> usize {
    let end = rest.iter().position(|&char| ends(char));
    end.unwrap_or(rest.len())
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn literal(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn raw_string(rest: &[char]) -> (Kind, usize) {
    let hashes = rest[1..].iter().take_while(|&&char| char == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return (Kind::Code, 1);
    }
    let ends =
        |at: usize| rest[at] == '"' && rest[at + 1..].iter().take(hashes).all(|&char| char == '#');
    let end = (2 + hashes..rest.len()).find(|&at| ends(at));
    let length = end.map_or(rest.len(), |at| at + 1 + hashes);
    (Kind::Text, length)
}

#[test]
fn a_source_is_taken_apart() {
    let source = "let a = \"x // y\"; // it's \"b\"\nlet c = 'd'; fn e<'f>(g: &'f u8) {} /* h /* i */ */ r#\"j\"#";
    let parts = Parts::new(source);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = "let a = ; let c = ; fn e<'f>(g: &'f u8) {}";
    assert_eq!(words(&parts.code), code);
    assert_eq!(words(&parts.comments), "// it's \"b\" /* h /* i */ */");
    assert_eq!(words(&parts.strings), "\"x // y\" 'd' r#\"j\"#");
    let parts = Parts::new("#[cfg(test)]\nmod a { fn b() {} }\nmod c;");
    assert_eq!(words(&parts.product_code()), "mod c;");
}
