#!/usr/bin/python3
"""xdrgen.py FILE.x OUTDIR: writes OUTDIR/FILE.h, FILE.c and FILE_test.h.

The XDR language of RFC 4506 section 6 and the program definitions of RFC 5531 section 12 become C types
and functions as xdr/xdr.h tells. FILE_test.h holds makers of random values, for tests/xdr only.

The C code never recurses on what a peer sends: a struct that ends in a pointer to itself is a list and
becomes a loop; any other recursion between types is refused here. The count of an array is checked
against the bytes that are left in the message before memory is taken for it.
"""

import os
import re
import sys

# Opaque fields that carry the bulk of a READ or WRITE and become a struct xdr_payload.
PAYLOADS = {
    ("WRITE3args", "data"),
    ("READ3resok", "data"),
    ("symlinkdata3", "symlink_data"),  # a client may send it as a Read chunk, too (RFC 8267 section 3)
    ("WRITE4args", "data"),
    ("READ4resok", "data"),
    ("SETXATTR4args", "sxa_value"),  # up to 64 KiB, which need not lie in one piece
}
# Enums that a decoder must not be strict about: others than those listed here are valid, too, or have an answer of their own.
OPEN_ENUMS = {"auth_flavor", "nfs_opnum4", "rdma_proc", "nfs_cb_opnum4", "nfs_ftype4", "nfsstat4", "data_content4"}
# Types of the RFCs that C has already.
C_TYPES = {"int32_t", "uint32_t", "int64_t", "uint64_t"}

PRIMITIVES = {  # C type, accessor's suffix, bytes on the wire
    "int": ("int32_t", "i32", 4),
    "unsigned int": ("uint32_t", "u32", 4),
    "hyper": ("int64_t", "i64", 8),
    "unsigned hyper": ("uint64_t", "u64", 8),
    "bool": ("bool", "bool", 4),
}
U32_MAX = 0xFFFFFFFF


class Fault(Exception):
    pass


class Decl:
    """One declaration. kind: void, scalar, array, list (T<>), opaque, bytes (opaque<>), string, optional."""

    def __init__(self, kind, ctype=None, name=None, size=None):
        self.kind, self.type, self.name, self.size = kind, ctype, name, size


class Parser:
    TOKEN = re.compile(r"\s+|/\*.*?\*/|//[^\n]*|%[^\n]*|(?P<t>[A-Za-z_]\w*|-?0[xX][0-9a-fA-F]+|-?\d+|[{}()\[\]<>=;:,*])", re.S)

    def __init__(self, text):
        self.tokens, at = [], 0
        while at < len(text):
            m = self.TOKEN.match(text, at)
            if not m:
                raise Fault("line %d: cannot read %r" % (text.count("\n", 0, at) + 1, text[at:at + 10]))
            if m.group("t"):
                self.tokens.append((m.group("t"), text.count("\n", 0, at) + 1))
            at = m.end()
        self.at = 0
        self.consts, self.types, self.order = {}, {}, []
        self.defines = []  # (name, text)

    def fail(self, what):
        token, line = self.tokens[min(self.at, len(self.tokens) - 1)]
        raise Fault("line %d: %s (at %r)" % (line, what, token))

    def peek(self):
        return self.tokens[self.at][0] if self.at < len(self.tokens) else None

    def take(self, want=None):
        token = self.peek()
        if token is None or (want is not None and token != want):
            self.fail("expected %s" % (want or "more"))
        self.at += 1
        return token

    def accept(self, want):
        if self.peek() == want:
            self.at += 1
            return True
        return False

    def name(self):
        token = self.take()
        if not re.match(r"[A-Za-z_]", token):
            self.fail("expected a name")
        return token

    def value(self):
        token = self.take()
        if token in ("TRUE", "FALSE"):
            return int(token == "TRUE")
        if re.match(r"-?\d", token):
            digits = token.lstrip("-")
            base = 16 if digits[:2] in ("0x", "0X") else 8 if len(digits) > 1 and digits[0] == "0" else 10
            return int(token, base)
        if token not in self.consts:
            self.fail("unknown constant %s" % token)
        return self.consts[token]

    def define(self, name, kind, body):
        if name in self.types:
            self.fail("%s is defined twice" % name)
        self.types[name] = (kind, body)
        self.order.append(name)

    def type_name(self):
        token = self.name()
        if token == "unsigned":
            if self.peek() in ("int", "hyper"):
                return "unsigned " + self.take()
            return "unsigned int"
        if token in ("struct", "union", "enum"):
            return self.name()
        return token

    def declaration(self):
        if self.accept("void"):
            return Decl("void")
        if self.peek() in ("opaque", "string"):
            what = self.take()
            name = self.name()
            if what == "opaque" and self.accept("["):
                size = self.value()
                self.take("]")
                return Decl("opaque", name=name, size=size)
            return Decl("bytes" if what == "opaque" else "string", name=name, size=self.bound())
        ctype = self.type_name()
        if self.accept("*"):
            return Decl("optional", ctype, self.name())
        name = self.name()
        if self.accept("["):
            size = self.value()
            self.take("]")
            return Decl("array", ctype, name, size)
        if self.peek() == "<":
            return Decl("list", ctype, name, self.bound())
        return Decl("scalar", ctype, name)

    def bound(self):
        self.take("<")
        size = U32_MAX if self.peek() == ">" else self.value()
        self.take(">")
        return size

    def parse(self):
        while self.peek() is not None:
            getattr(self, "p_" + self.peek(), lambda: self.fail("unknown definition"))()
        return self

    def p_const(self):
        self.take("const")
        name = self.name()
        self.take("=")
        text = self.peek()
        self.consts[name] = self.value()
        self.defines.append((name, text))
        self.take(";")

    def p_typedef(self):
        self.take("typedef")
        decl = self.declaration()
        self.take(";")
        if decl.name not in C_TYPES:
            self.define(decl.name, "typedef", decl)
        else:
            self.types[decl.name] = ("typedef", decl)

    def p_enum(self):
        self.take("enum")
        name, members = self.name(), []
        self.take("{")
        while True:
            member = self.name()
            self.take("=")
            self.consts[member] = self.value()
            members.append((member, self.consts[member]))
            if not self.accept(","):
                break
        self.take("}")
        self.take(";")
        self.define(name, "enum", members)

    def p_struct(self):
        self.take("struct")
        name, fields = self.name(), []
        self.take("{")
        while not self.accept("}"):
            field = self.declaration()
            self.take(";")
            if field.kind != "void":
                fields.append(field)
        self.take(";")
        self.define(name, "struct", fields)

    def p_union(self):
        self.take("union")
        name = self.name()
        self.take("switch")
        self.take("(")
        tag = self.declaration()
        self.take(")")
        self.take("{")
        arms, default = [], None
        while not self.accept("}"):
            cases = []
            while self.accept("case"):
                cases.append(self.peek())
                self.value()
                self.take(":")
            if not cases:
                self.take("default")
                self.take(":")
                default = self.declaration()
            else:
                arms.append((cases, self.declaration()))
            self.take(";")
        self.take(";")
        self.define(name, "union", (tag, arms, default))

    def p_program(self):
        self.take("program")
        program = self.name()
        self.take("{")
        while self.accept("version"):
            version = self.name()
            self.take("{")
            while not self.accept("}"):
                self.type_name()
                procedure = self.name()
                self.take("(")
                while not self.accept(")"):
                    self.take()
                self.take("=")
                self.defines.append((procedure, str(self.value())))
                self.take(";")
            self.take("=")
            self.defines.append((version, str(self.value())))
            self.take(";")
        self.take("}")
        self.take("=")
        number = self.take()
        self.defines.append((program, number + ("u" if int(number, 0) > 0x7FFFFFFF else "")))
        self.take(";")


class Generator:
    def __init__(self, parser, stem):
        self.types, self.order, self.defines, self.stem = parser.types, parser.order, parser.defines, stem
        for name in self.order:
            self.check_cycle(name, [])

    # ---- what is known of types

    def resolve(self, ctype):
        """Follows typedefs that only rename; returns a primitive's or a defined type's name."""
        while ctype not in PRIMITIVES:
            if ctype not in self.types:
                raise Fault("unknown type %s" % ctype)
            kind, body = self.types[ctype]
            if kind != "typedef" or body.kind != "scalar":
                return ctype
            ctype = body.type
        return ctype

    def list_next(self, ctype):
        """The field by which a struct is a list of itself, else None."""
        kind, body = self.types.get(ctype, (None, None))
        if kind == "struct" and body and self.points_to(body[-1]) == ctype:
            return body[-1]
        return None

    def points_to(self, decl):
        if decl.kind == "optional":
            return self.resolve(decl.type)
        if decl.kind == "scalar":
            name = self.resolve(decl.type)
            if name not in PRIMITIVES and self.types[name][0] == "typedef" and self.types[name][1].kind == "optional":
                return self.resolve(self.types[name][1].type)
        return None

    def members(self, ctype):
        kind, body = self.types[ctype]
        if kind == "struct":
            return body
        if kind == "union":
            tag, arms, default = body
            return [tag] + [d for _, d in arms] + ([default] if default else [])
        return [body] if kind == "typedef" else []

    def check_cycle(self, ctype, path):
        if ctype in PRIMITIVES:
            return
        if ctype not in self.types:
            raise Fault("unknown type %s" % ctype)
        if ctype in path:
            raise Fault("%s contains itself: %s" % (ctype, " -> ".join(path)))
        fields = self.members(ctype)
        if self.list_next(ctype):
            fields = fields[:-1]
        for decl in fields:
            if decl.type:
                self.check_cycle(decl.type, path + [ctype])

    def size(self, decl, most, owner=None):
        """Least or most bytes on the wire; None: no bound."""
        def up(n):
            return (n + 3) & ~3
        kind = decl.kind
        if kind == "void":
            return 0
        if kind == "opaque":
            return up(decl.size)
        if kind in ("bytes", "string"):
            if (owner, decl.name) in PAYLOADS or not most:
                return 4
            return None if decl.size == U32_MAX else 4 + up(decl.size)
        if kind == "optional":
            if not most:
                return 4
            if self.list_next(self.resolve(decl.type)):
                return None
            inner = self.type_size(decl.type, most)
            return None if inner is None else 4 + inner
        inner = self.type_size(decl.type, most)
        if kind == "scalar":
            return inner
        if kind == "array":
            return None if inner is None else inner * decl.size
        if not most:
            return 4
        return None if inner is None or decl.size == U32_MAX else 4 + inner * decl.size

    def type_size(self, ctype, most):
        ctype = self.resolve(ctype)
        if ctype in PRIMITIVES:
            return PRIMITIVES[ctype][2]
        kind, body = self.types[ctype]
        if kind == "enum":
            return 4
        if kind == "typedef":
            return self.size(body, most, ctype)
        if kind == "struct":
            if most and self.list_next(ctype):
                return None
            sizes = [self.size(f, most, ctype) for f in body]
            return None if None in sizes else sum(sizes)
        tag, arms, default = body
        sizes = [self.size(d, most, ctype) for _, d in arms] + ([self.size(default, most, ctype)] if default else [])
        return None if None in sizes else 4 + (max(sizes) if most else min(sizes))

    # ---- the header

    def c_type(self, ctype):
        return PRIMITIVES[ctype][0] if ctype in PRIMITIVES else ctype

    def c_decl(self, decl, owner, indent="\t"):
        kind, name = decl.kind, decl.name
        if kind == "scalar":
            return "%s%s %s;" % (indent, self.c_type(decl.type), name)
        if kind == "array":
            return "%s%s %s[%d];" % (indent, self.c_type(decl.type), name, decl.size)
        if kind == "opaque":
            return "%suint8_t %s[%d];" % (indent, name, decl.size)
        if kind in ("bytes", "string"):
            return "%sstruct %s %s;" % (indent, "xdr_payload" if (owner, name) in PAYLOADS else "xdr_opaque", name)
        if kind == "optional":
            return "%s%s *%s;" % (indent, self.c_type(decl.type), name)
        if kind == "list":
            return "%sstruct {\n%s\tuint32_t count;\n%s\t%s *item;\n%s} %s;" % (
                indent, indent, indent, self.c_type(decl.type), indent, name)
        return None

    def header(self):
        out = ["/* Made from %s.x by xdrgen.py: see xdr/xdr.h. The arms of a union stand beside its discriminant. */" % self.stem]
        guard = "FURROW_XDR_%s_H" % self.stem.upper()
        out += ["#ifndef " + guard, "#define " + guard, "", '#include "xdr/xdr.h"', ""]
        out += ["#define %s %s" % d for d in self.defines] + [""]
        for name in self.order:
            if self.types[name][0] in ("struct", "union"):
                out.append("typedef struct %s %s;" % (name, name))
        out.append("")
        for name in self.order:
            kind, body = self.types[name]
            if kind == "enum":
                out.append("typedef enum %s {" % name)
                out += ["\t%s = %d," % m for m in body]
                out += ["} %s;" % name]
            elif kind == "typedef":
                if body.kind == "list":
                    out.append("typedef struct %s {\n\tuint32_t count;\n\t%s *item;\n} %s;" % (name, self.c_type(body.type), name))
                else:
                    out.append("typedef " + self.c_decl(body, name, ""))
            elif kind == "struct":
                out.append("struct %s {" % name)
                out += [self.c_decl(f, name) for f in body] or ["\tchar nothing[0];"]
                out.append("};")
            else:
                tag, arms, default = body
                out += ["struct %s {" % name, self.c_decl(tag, name)]
                fields = [self.c_decl(d, name, "\t\t") for _, d in arms if d.kind != "void"]
                if default and default.kind != "void":
                    fields.append(self.c_decl(default, name, "\t\t"))
                if fields:
                    out += ["\tunion {"] + fields + ["\t};"]
                out.append("};")
        out.append("")
        for name in self.order:
            most = self.type_size(name, True)
            if most is not None:
                out.append("#define XDR_MAX_%s %du" % (name, most))
        out.append("")
        for name in self.order:
            target = self.resolve(name)
            if target in PRIMITIVES:
                suffix = PRIMITIVES[target][1]
                out.append("#define xdr_decode_%s xdr_get_%s" % (name, suffix))
                out.append("#define xdr_encode_%s(out, value) xdr_put_%s(out, *(value))" % (name, suffix))
            else:
                out.append("bool xdr_decode_%s(struct xdr_in *in, %s *value);" % (name, name))
                out.append("bool xdr_encode_%s(struct xdr_out *out, const %s *value);" % (name, name))
        out += ["", "#endif", ""]
        return "\n".join(out)

    # ---- the codec

    def coded(self, decode, ctype, at):
        """A condition that codes one value of a type at the lvalue AT."""
        target = self.resolve(ctype)
        if target in PRIMITIVES:
            suffix = PRIMITIVES[target][1]
            return ("xdr_get_%s(in, &%s)" if decode else "xdr_put_%s(out, %s)") % (suffix, at)
        return ("xdr_decode_%s(in, &%s)" if decode else "xdr_encode_%s(out, &%s)") % (target, at)

    def code(self, decode, decl, owner, at, ind="\t"):
        """Lines that code one declaration."""
        fail = ind + "\treturn false;"
        kind = decl.kind
        if kind == "void":
            return []
        if kind == "scalar":
            return [ind + "if (!%s)" % self.coded(decode, decl.type, at), fail]
        if kind == "opaque":
            return [ind + ("if (!xdr_get_fixed(in, %s, %d))" if decode else "if (!xdr_put_fixed(out, %s, %d))") % (at, decl.size), fail]
        if kind in ("bytes", "string"):
            bound = "UINT32_MAX" if decl.size == U32_MAX else "%d" % decl.size
            if (owner, decl.name) in PAYLOADS:
                # the position is filled in where the caller can see it: xdr_out.payload[]
                return ([ind + "if (!xdr_get_payload(in, %s, &%s))" % (bound, at), fail] if decode else
                        [ind + "{", ind + "\tstruct xdr_payload payload = %s;" % at,
                         ind + "\tif (!xdr_put_payload(out, &payload))", ind + "\t\treturn false;", ind + "}"])
            if decode:
                return [ind + "if (!xdr_get_opaque(in, %s, &%s))" % (bound, at), fail]
            over = "" if decl.size == U32_MAX else "%s.len > %d || " % (at, decl.size)
            return [ind + "if (%s!xdr_put_opaque(out, %s.data, %s.len))" % (over, at, at), fail]
        if kind == "array":
            return [ind + "for (uint32_t i = 0; i < %d; i++)" % decl.size,
                    ind + "\tif (!%s)" % self.coded(decode, decl.type, at + "[i]"), "\t" + fail]
        if kind == "list":
            over = "" if decl.size == U32_MAX else "%s.count > %d || " % (at, decl.size)
            if decode:
                least = self.type_size(decl.type, False)
                if not least:
                    raise Fault("%s: an array of nothing has no bound" % owner)
                return [ind + "if (!xdr_get_u32(in, &%s.count))" % at, fail,
                        ind + "if (%s%s.count > xdr_in_left(in) / %d)" % (over, at, least), fail,
                        ind + "%s.item = xdr_pool_take(in->pool, (size_t)%s.count * sizeof(*%s.item));" % (at, at, at),
                        ind + "if (!%s.item)" % at, fail,
                        ind + "for (uint32_t i = 0; i < %s.count; i++)" % at,
                        ind + "\tif (!%s)" % self.coded(True, decl.type, at + ".item[i]"), "\t" + fail]
            return [ind + "if (%s!xdr_put_u32(out, %s.count))" % (over, at), fail,
                    ind + "for (uint32_t i = 0; i < %s.count; i++)" % at,
                    ind + "\tif (!%s)" % self.coded(False, decl.type, at + ".item[i]"), "\t" + fail]
        target = self.resolve(decl.type)
        if self.list_next(target):
            return [ind + ("if (!list_decode_%s(in, &%s))" if decode else "if (!list_encode_%s(out, %s))") % (target, at), fail]
        if decode:
            return [ind + "{", ind + "\tbool some;", ind + "\tif (!xdr_get_bool(in, &some))", "\t" + fail,
                    ind + "\t%s = NULL;" % at, ind + "\tif (some) {",
                    ind + "\t\t%s = xdr_pool_take(in->pool, sizeof(*%s));" % (at, at),
                    ind + "\t\tif (!%s || !%s)" % (at, self.coded(True, decl.type, "(*%s)" % at)), "\t\t" + fail,
                    ind + "\t}", ind + "}"]
        return [ind + "if (!xdr_put_bool(out, %s != NULL))" % at, fail,
                ind + "if (%s && !%s)" % (at, self.coded(False, decl.type, "(*%s)" % at)), fail]

    def fixed_parts(self, decl, at):
        """What DECL at the lvalue AT is made of when that has one size: (lvalue, accessor's suffix, bytes); else None."""
        if decl.kind == "opaque" and decl.size % 4 == 0:
            return [(at, None, decl.size)]
        target = self.resolve(decl.type) if decl.kind == "scalar" else "bool"
        if target == "bool":  # not all that has its size is one
            return None
        if target in PRIMITIVES:
            return [(at,) + PRIMITIVES[target][1:]]
        kind, body = self.types[target]
        if kind == "typedef" and body.kind == "opaque":
            return self.fixed_parts(body, at)
        parts = [self.fixed_parts(f, at + "." + f.name) for f in body] if kind == "struct" and body else [None]
        return None if None in parts else sum(parts, [])

    def fixed_run(self, fields):
        """How many of the first fields have one size each, and what they are made of."""
        count, run = 0, []
        for f in fields:
            parts = self.fixed_parts(f, "value->%s" % f.name)
            if parts is None:
                break
            count += 1
            run += parts
        return count, run

    def code_fields(self, decode, fields, owner):
        out = []
        while fields:
            count, run = self.fixed_run(fields)
            if len(run) > 1:  # one check of room for all of them
                size = sum(part[2] for part in run)
                out += ["\tif (!%s)" % ("xdr_in_room(in, %d)" % size if decode else "xdr_out_room(out, %d)" % size), "\t\treturn false;"]
                for at, suffix, size in run:
                    if suffix:
                        out.append("\t%s = xdr_take_%s(in);" % (at, suffix) if decode else "\txdr_lay_%s(out, %s);" % (suffix, at))
                    else:
                        out.append("\txdr_%s, %s, %d);" % ("take_fixed(in" if decode else "lay_fixed(out", at, size))
                fields = fields[count:]
                continue
            out += self.code(decode, fields[0], owner, "value->" + fields[0].name)
            fields = fields[1:]
        return out

    def function(self, decode, name, lines, prefix="xdr_", static=False):
        head = "%sbool %s%s_%s(struct xdr_%s, %s%s *value)" % (
            "static " if static else "", prefix, "decode" if decode else "encode", name,
            "in *in" if decode else "out *out", "" if decode else "const ", name)
        return [head, "{"] + lines + ["}", ""]

    def body(self, decode, name):
        kind, body = self.types[name]
        if kind == "enum":
            if not decode:
                return ["\treturn xdr_put_u32(out, (uint32_t)*value);"]
            out = ["\tuint32_t v;", "\tif (!xdr_get_u32(in, &v))", "\t\treturn false;"]
            if name not in OPEN_ENUMS:
                values = sorted(set(v for _, v in body))
                out += ["\tswitch ((int32_t)v) {"] + ["\tcase %d:" % v for v in values] + ["\t\tbreak;", "\tdefault:", "\t\treturn false;", "\t}"]
            return out + ["\t*value = (%s)v;" % name, "\treturn true;"]
        if kind == "typedef":
            return self.code(decode, body, name, "(*value)") + ["\treturn true;"]
        if kind == "struct":
            if not body:
                return ["\t(void)%s;" % ("in" if decode else "out"), "\t(void)value;", "\treturn true;"]
            return self.code_fields(decode, body, name) + ["\treturn true;"]
        tag, arms, default = body
        out = self.code(decode, tag, name, "value->" + tag.name)
        is_bool = self.resolve(tag.type) == "bool"
        out.append("\tswitch (%svalue->%s) {" % ("(int)" if is_bool else "(uint32_t)", tag.name))
        for cases, decl in arms:
            out += ["\tcase %s:" % {"TRUE": "1", "FALSE": "0"}.get(c, c) for c in cases]
            out += self.code(decode, decl, name, "value->%s" % decl.name, "\t\t") + ["\t\tbreak;"]
        out.append("\tdefault:")
        if default:
            out += self.code(decode, default, name, "value->%s" % default.name, "\t\t") + ["\t\tbreak;"]
        else:
            out.append("\t\treturn false;")
        return out + ["\t}", "\treturn true;"]

    def list_functions(self, name):
        """A list of structs is coded by a loop, whichever node it is entered by."""
        step = self.list_next(name).name
        fields = self.types[name][1][:-1]
        out = []
        for decode in (True, False):
            out += self.function(decode, name, self.code_fields(decode, fields, name) + ["\treturn true;"], "node_", True)
        out += ["static bool list_decode_%s(struct xdr_in *in, %s **head)" % (name, name), "{",
                "\tfor (;;) {", "\t\tbool some;", "\t\t*head = NULL;", "\t\tif (!xdr_get_bool(in, &some))", "\t\t\treturn false;",
                "\t\tif (!some)", "\t\t\treturn true;",
                "\t\t%s *node = xdr_pool_take(in->pool, sizeof(*node));" % name,
                "\t\tif (!node)", "\t\t\treturn false;",
                "\t\tnode->%s = NULL;" % step,
                "\t\tif (!node_decode_%s(in, node))" % name, "\t\t\treturn false;",
                "\t\t*head = node;", "\t\thead = &node->%s;" % step, "\t}", "}", ""]
        out += ["static bool list_encode_%s(struct xdr_out *out, const %s *node)" % (name, name), "{",
                "\tfor (; node; node = node->%s)" % step,
                "\t\tif (!xdr_put_bool(out, true) || !node_encode_%s(out, node))" % name, "\t\t\treturn false;",
                "\treturn xdr_put_bool(out, false);", "}", ""]
        return out

    def source(self):
        out = ["/* Made from %s.x by xdrgen.py. */" % self.stem, '#include "xdr/%s.h"' % self.stem, ""]
        lists = [n for n in self.order if self.list_next(n)]
        for name in lists:
            out += ["static bool list_decode_%s(struct xdr_in *in, %s **head);" % (name, name),
                    "static bool list_encode_%s(struct xdr_out *out, const %s *node);" % (name, name)]
        out += [""] if lists else []
        for name in self.order:
            if self.resolve(name) in PRIMITIVES:
                continue
            if name in lists:
                out += self.list_functions(name)
                step = self.list_next(name).name
                for decode in (True, False):
                    verb, stream = ("decode", "in") if decode else ("encode", "out")
                    out += self.function(decode, name, ["\treturn node_%s_%s(%s, value) && list_%s_%s(%s, %svalue->%s);" % (
                        verb, name, stream, verb, name, stream, "&" if decode else "", step)])
            else:
                for decode in (True, False):
                    out += self.function(decode, name, self.body(decode, name))
        return "\n".join(out)

    # ---- makers of random values

    def rand_type(self, ctype, at):
        target = self.resolve(ctype)
        if target == "bool":
            return "%s = test_random(r) & 1;" % at
        if target in PRIMITIVES:
            return "%s = (%s)test_random(r);" % (at, PRIMITIVES[target][0])
        return "random_%s(r, &%s);" % (target, at)

    def rand(self, decl, owner, at, ind="\t"):
        kind = decl.kind
        if kind == "void":
            return []
        if kind == "scalar":
            return [ind + self.rand_type(decl.type, at)]
        if kind == "opaque":
            return [ind + "test_random_fill(r, %s, %d);" % (at, decl.size)]
        if kind in ("bytes", "string"):
            if (owner, decl.name) in PAYLOADS:
                return [ind + "%s.len = test_random_count(r, 4096);" % at]
            return [ind + "%s.len = test_random_count(r, %s);" % (at, min(decl.size, 300)),
                    ind + "%s.data = test_random_bytes(r, %s.len);" % (at, at)]
        if kind == "array":
            return [ind + "for (uint32_t i = 0; i < %d; i++)" % decl.size, ind + "\t" + self.rand_type(decl.type, at + "[i]")]
        if kind == "list":
            return [ind + "%s.count = test_random_count(r, %d);" % (at, min(decl.size, 6)),
                    ind + "%s.item = test_random_take(r, %s.count * sizeof(*%s.item));" % (at, at, at),
                    ind + "for (uint32_t i = 0; i < %s.count; i++)" % at, ind + "\t" + self.rand_type(decl.type, at + ".item[i]")]
        target = self.resolve(decl.type)
        step = self.list_next(target)
        if step:
            return [ind + "%s = NULL;" % at, ind + "for (uint32_t n = test_random_count(r, 5); n; n--) {",
                    ind + "\t%s *node = test_random_take(r, sizeof(*node));" % target,
                    ind + "\tnode_random_%s(r, node);" % target, ind + "\tnode->%s = %s;" % (step.name, at),
                    ind + "\t%s = node;" % at, ind + "}"]
        return [ind + "%s = NULL;" % at, ind + "if (test_random(r) & 1) {",
                ind + "\t%s = test_random_take(r, sizeof(*%s));" % (at, at), ind + "\t" + self.rand_type(decl.type, "(*%s)" % at), ind + "}"]

    def test_header(self):
        out = ["/* Made from %s.x by xdrgen.py, for tests/xdr: random values, and a table of all types. */" % self.stem,
               '#include "xdr/%s.h"' % self.stem, ""]
        names = [n for n in self.order if self.resolve(n) not in PRIMITIVES]
        for name in names:
            if self.list_next(name):
                out.append("static void node_random_%s(struct test_random *r, %s *value);" % (name, name))
            out.append("static void random_%s(struct test_random *r, %s *value);" % (name, name))
        for name in names:
            kind, body = self.types[name]
            lines = []
            if kind == "enum":
                lines = ["\tstatic const int64_t all[] = {%s};" % ", ".join(str(v) for _, v in body),
                         "\t*value = (%s)all[test_random(r) %% %d];" % (name, len(body))]
            elif kind == "typedef":
                lines = self.rand(body, name, "(*value)")
            elif kind == "struct":
                fields = body[:-1] if self.list_next(name) else body
                for f in fields:
                    lines += self.rand(f, name, "value->" + f.name)
                if self.list_next(name):
                    out += ["static void node_random_%s(struct test_random *r, %s *value)" % (name, name), "{"] + lines + ["}"]
                    lines = ["\tnode_random_%s(r, value);" % name] + self.rand(body[-1], name, "value->" + body[-1].name)
            else:
                tag, arms, default = body
                choices = [c for cases, _ in arms for c in cases]
                pick = ["\tswitch (test_random(r) %% %d) {" % (len(choices) + bool(default))]
                for i, c in enumerate(choices):
                    pick += ["\tcase %d:" % i, "\t\tvalue->%s = %s;" % (tag.name, {"TRUE": "true", "FALSE": "false"}.get(c, c)), "\t\tbreak;"]
                pick += ["\tdefault:"] + ["\t" + l for l in self.rand(tag, name, "value->" + tag.name)] + ["\t}"]
                lines = pick
                is_bool = self.resolve(tag.type) == "bool"
                lines.append("\tswitch (%svalue->%s) {" % ("(int)" if is_bool else "(uint32_t)", tag.name))
                for cases, decl in arms:
                    lines += ["\tcase %s:" % {"TRUE": "1", "FALSE": "0"}.get(c, c) for c in cases]
                    lines += self.rand(decl, name, "value->%s" % decl.name, "\t\t") + ["\t\tbreak;"]
                lines += ["\tdefault:"] + (self.rand(default, name, "value->%s" % default.name, "\t\t") if default else []) + ["\t\tbreak;", "\t}"]
            out += ["static void random_%s(struct test_random *r, %s *value)" % (name, name), "{"] + (
                lines or ["\t(void)r;", "\t(void)value;"]) + ["}"]
        for name in names:
            out += ["static bool any_decode_%s(struct xdr_in *in, void *v)" % name, "{", "\treturn xdr_decode_%s(in, v);" % name, "}",
                    "static bool any_encode_%s(struct xdr_out *out, const void *v)" % name, "{", "\treturn xdr_encode_%s(out, v);" % name, "}",
                    "static void any_random_%s(struct test_random *r, void *v)" % name, "{", "\trandom_%s(r, v);" % name, "}"]
        out.append("static const struct test_type test_types_%s[] = {" % self.stem)
        for name in names:
            most = self.type_size(name, True)
            out.append('\t{"%s", sizeof(%s), %s, any_decode_%s, any_encode_%s, any_random_%s},' % (
                name, name, "0" if most is None else most, name, name, name))
        out += ["};", ""]
        return "\n".join(out)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: xdrgen.py FILE.x OUTDIR")
    path, where = sys.argv[1:]
    stem = os.path.splitext(os.path.basename(path))[0]
    try:
        with open(path, encoding="utf-8") as f:
            generator = Generator(Parser(f.read()).parse(), stem)
        texts = {stem + ".h": generator.header(), stem + "_test.h": generator.test_header(), stem + ".c": generator.source()}
    except Fault as fault:
        sys.exit("%s: %s" % (path, fault))
    for name, text in texts.items():
        path = os.path.join(where, name)
        if name.endswith(".h") and os.path.exists(path):  # a header that did not change must not look newer
            with open(path, encoding="utf-8") as f:
                if f.read() == text:
                    continue
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


main()
