//! From text to [`Module`].

use std::cell::Cell;

use super::{Directive, Function, Instruction, Module, Space, Variable};

/// Text that is no PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// A directive that every module has is missing.
    #[error("no {directive} directive")]
    Missing {
        /// The directive.
        directive: &'static str,
    },
    /// The text ends too early.
    #[error("line {line}: the text ends inside a {within}")]
    UnexpectedEnd {
        /// Where the unfinished part began, from 1.
        line: usize,
        /// What was not finished.
        within: &'static str,
    },
    /// Something that is none of the forms expected there.
    #[error("line {line}: cannot read {text:?}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
}

pub(super) fn module(text: &str) -> Result<Module, ParseError> {
    let text = without_comments(text)?;
    let mut scanner = Scanner {
        text: &text,
        position: 0,
        line: Cell::new((0, 1)),
    };
    let mut version = None;
    let mut target = None;
    let mut address_size = None;
    let mut entries = Vec::new();
    let mut functions = Vec::new();
    let mut declared_functions = Vec::new();
    let mut variables = Vec::new();
    while let Some((start, word)) = scanner.peek_word() {
        match word {
            ".version" => {
                let line = scanner.rest_of_line();
                version =
                    Some(parse_version(line).ok_or_else(|| scanner.malformed(start, line.trim()))?);
            }
            ".target" => {
                let line = scanner.rest_of_line();
                let name = line.trim_start_matches(".target").split(',').next();
                target = name.map(|name| name.trim().to_owned());
            }
            ".address_size" => {
                let line = scanner.rest_of_line();
                let bits = line.trim_start_matches(".address_size").trim().parse();
                address_size = Some(bits.map_err(|_| scanner.malformed(start, line.trim()))?);
            }
            ".file" | ".loc" => {
                scanner.rest_of_line();
            }
            ".section" => {
                scanner.rest_of_line();
                scanner.skip_braces(start)?;
            }
            ".entry" | ".func" => {
                scanner.take(word);
                match scanner.function(start)? {
                    Definition::Body(function) if word == ".entry" => entries.push(*function),
                    Definition::Body(function) => functions.push(*function),
                    Definition::Declaration(name) => declared_functions.push(name),
                }
            }
            ".extern" | ".visible" | ".weak" | ".common" => scanner.take(word),
            ".global" | ".const" | ".shared" => {
                let statement = scanner.statement(start)?;
                variables.push(scanner.variable(start, statement)?);
            }
            directive if directive.starts_with('.') => {
                scanner.statement(start)?;
            }
            other => return Err(scanner.malformed(start, other)),
        }
    }
    let missing = |directive| ParseError::Missing { directive };
    Ok(Module {
        version: version.ok_or(missing(".version"))?,
        target: target.ok_or(missing(".target"))?,
        address_size: address_size.ok_or(missing(".address_size"))?,
        entries,
        functions,
        declared_functions,
        variables,
    })
}

fn parse_version(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.trim_start_matches(".version").trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The text with comments replaced by spaces, line breaks kept, so that positions and lines hold.
fn without_comments(text: &str) -> Result<String, ParseError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let blank = |comment: &str| comment.replace(|c| c != '\n', " ");
    while let Some(found) = rest.find(['/', '"']) {
        let (before, from) = rest.split_at(found);
        out.push_str(before);
        let length = if from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with("/*") {
            from.find("*/")
                .map(|end| end + 2)
                .ok_or_else(|| ParseError::UnexpectedEnd {
                    line: 1 + line_breaks(&text[..text.len() - from.len()]),
                    within: "comment",
                })?
        } else if let Some(end) = from[1..].find('"').filter(|_| from.starts_with('"')) {
            out.push_str(&from[..end + 2]);
            rest = &from[end + 2..];
            continue;
        } else {
            out.push_str(&from[..1]);
            rest = &from[1..];
            continue;
        };
        out.push_str(&blank(&from[..length]));
        rest = &from[length..];
    }
    out.push_str(rest);
    Ok(out)
}

fn line_breaks(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

enum Definition {
    Body(Box<Function>),
    Declaration(String),
}

struct Scanner<'a> {
    text: &'a str,
    position: usize,
    /// A position whose line is known, and that line: modules have ten thousands of instructions,
    /// and counting from the top for each would take longer than compiling them.
    line: Cell<(usize, usize)>,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn skip_space(&mut self) {
        self.position = self.text.len() - self.rest().trim_start().len();
    }

    fn line(&self, position: usize) -> usize {
        let (known, line) = self.line.get();
        let line = if position >= known {
            line + line_breaks(&self.text[known..position])
        } else {
            line - line_breaks(&self.text[position..known])
        };
        self.line.set((position, line));
        line
    }

    fn malformed(&self, start: usize, text: &str) -> ParseError {
        ParseError::Malformed {
            line: self.line(start),
            text: text.to_owned(),
        }
    }

    fn unexpected_end(&self, start: usize, within: &'static str) -> ParseError {
        ParseError::UnexpectedEnd {
            line: self.line(start),
            within,
        }
    }

    /// The next word and where it begins, not yet taken. A word ends at white space or at
    /// punctuation that is no part of a name.
    fn peek_word(&mut self) -> Option<(usize, &'a str)> {
        self.skip_space();
        let rest = self.rest();
        let first = rest.chars().next()?;
        let end = rest
            .find(|c: char| c.is_whitespace() || ",;:(){}[]=<\"".contains(c))
            .unwrap_or(rest.len());
        Some((self.position, &rest[..end.max(first.len_utf8())]))
    }

    fn take(&mut self, word: &str) {
        self.position += word.len();
    }

    fn rest_of_line(&mut self) -> &'a str {
        let rest = self.rest();
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        self.take(line);
        line
    }

    /// Everything up to the next semicolon, which is taken too. PTX has no strings with
    /// semicolons outside debug sections, and initialisers have none.
    fn statement(&mut self, start: usize) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let end = rest
            .find(';')
            .ok_or_else(|| self.unexpected_end(start, "statement"))?;
        self.position += end + 1;
        Ok(rest[..end].trim())
    }

    /// Takes what stands between the brackets that open here, nested ones included.
    fn bracketed(
        &mut self,
        (open, close): (char, char),
        start: usize,
        within: &'static str,
    ) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let mut depth = 0usize;
        for (index, character) in rest.char_indices() {
            if character == open {
                depth += 1;
            } else if character == close {
                depth -= 1;
                if depth == 0 {
                    self.position += index + 1;
                    return Ok(&rest[1..index]);
                }
            }
        }
        Err(self.unexpected_end(start, within))
    }

    fn skip_braces(&mut self, start: usize) -> Result<(), ParseError> {
        self.skip_space();
        if self.rest().starts_with('{') {
            self.bracketed(('{', '}'), start, "section")?;
        }
        Ok(())
    }

    /// `[(result)] name [(parameters)] directives… {body}`, or `;` in place of directives and body.
    fn function(&mut self, start: usize) -> Result<Definition, ParseError> {
        self.skip_space();
        if self.rest().starts_with('(') {
            self.bracketed(('(', ')'), start, "parameter list")?;
        }
        let (_, name) = self
            .peek_word()
            .ok_or_else(|| self.unexpected_end(start, "declaration"))?;
        self.take(name);
        self.skip_space();
        let mut params = Vec::new();
        if self.rest().starts_with('(') {
            let list = self.bracketed(('(', ')'), start, "parameter list")?;
            for param in list
                .split(',')
                .map(str::trim)
                .filter(|param| !param.is_empty())
            {
                params.push(self.variable(start, param)?);
            }
        }
        self.skip_space();
        let rest = self.rest();
        let end = rest
            .find(['{', ';'])
            .ok_or_else(|| self.unexpected_end(start, "declaration"))?;
        let directives = directives(&rest[..end]);
        self.position += end;
        if rest[end..].starts_with(';') {
            self.take(";");
            return Ok(Definition::Declaration(name.to_owned()));
        }
        let (variables, instructions) = self.body(start)?;
        Ok(Definition::Body(Box::new(Function {
            name: name.to_owned(),
            line: self.line(start),
            params,
            directives,
            variables,
            instructions,
        })))
    }

    /// A body with its braces. Nested braces only open scopes; those of operands are inside
    /// statements.
    fn body(&mut self, start: usize) -> Result<(Vec<Variable>, Vec<Instruction>), ParseError> {
        let mut variables = Vec::new();
        let mut instructions = Vec::new();
        let mut depth = 0usize;
        loop {
            let (at, word) = self
                .peek_word()
                .ok_or_else(|| self.unexpected_end(start, "body"))?;
            match word {
                "{" => {
                    depth += 1;
                    self.take(word);
                }
                "}" => {
                    depth -= 1;
                    self.take(word);
                    if depth == 0 {
                        return Ok((variables, instructions));
                    }
                }
                ";" => self.take(word),
                ".loc" | ".file" => {
                    self.rest_of_line();
                }
                ".local" | ".shared" => {
                    let statement = self.statement(at)?;
                    variables.push(self.variable(at, statement)?);
                }
                directive if directive.starts_with('.') => {
                    self.statement(at)?;
                }
                // Two colons qualify a state space: `cp.async.bulk.global.shared::cta`.
                label
                    if self.rest()[label.len()..].starts_with(':')
                        && !self.rest()[label.len()..].starts_with("::") =>
                {
                    self.position += label.len() + 1;
                }
                _ => {
                    let statement = self.statement(at)?;
                    instructions.push(instruction(statement, self.line(at)));
                }
            }
        }
    }

    /// `.space [.align n] [.v2|.v4] .type [.ptr [.space] [.align n]] name [\[n\]…] [= value]`.
    fn variable(&self, start: usize, declaration: &str) -> Result<Variable, ParseError> {
        let malformed = || self.malformed(start, declaration);
        let text = declaration.split('=').next().unwrap_or_default();
        let (words, dimensions) = text.split_at(text.find('[').unwrap_or(text.len()));
        let mut words = words.split_whitespace().peekable();
        let space = match words.next() {
            Some(".param") => Space::Param,
            Some(".global") => Space::Global,
            Some(".const") => Space::Const,
            Some(".shared") => Space::Shared,
            Some(".local") => Space::Local,
            _ => return Err(malformed()),
        };
        let mut align = None;
        let mut vector = 1;
        let mut ty = None;
        let mut name = None;
        while let Some(word) = words.next() {
            match word {
                // The alignment after .ptr is that of what the parameter points to.
                ".align" if ty.is_none() => {
                    align = words.next().and_then(|number| number.parse().ok());
                }
                ".align" => {
                    words.next();
                }
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".ptr" => {}
                _ if word.starts_with('.') && ty.is_none() => ty = Some(&word[1..]),
                _ if word.starts_with('.') => {}
                _ => name = Some(word),
            }
        }
        let mut elements = 1;
        for dimension in dimensions.split('[').skip(1) {
            let number = dimension.trim_end().trim_end_matches(']').trim();
            elements *= match number {
                "" => 0,
                number => number.parse().map_err(|_| malformed())?,
            };
        }
        Ok(Variable {
            space,
            name: name.ok_or_else(malformed)?.to_owned(),
            ty: ty.ok_or_else(malformed)?.to_owned(),
            vector,
            align,
            elements,
        })
    }
}

/// `.name n, n .name …`.
fn directives(text: &str) -> Vec<Directive> {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .split('.')
        .skip(1)
        .map(|directive| {
            let (name, values) = directive.split_once(' ').unwrap_or((directive, ""));
            Directive {
                name: name.trim().to_owned(),
                values: values
                    .split(',')
                    .filter_map(|value| value.trim().parse().ok())
                    .collect(),
            }
        })
        .collect()
}

/// `[@predicate] mnemonic [operands]`.
fn instruction(statement: &str, line: usize) -> Instruction {
    let split = |text: &'_ str| -> (String, String) {
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        (word.to_owned(), rest.trim().to_owned())
    };
    let (predicate, rest) = match statement.strip_prefix('@') {
        Some(guarded) => {
            let (predicate, rest) = split(guarded);
            (Some(predicate), rest)
        }
        None => (None, statement.to_owned()),
    };
    let (mnemonic, operands) = split(&rest);
    Instruction {
        predicate,
        mnemonic,
        operands,
        line,
    }
}
