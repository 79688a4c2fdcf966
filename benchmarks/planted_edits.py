# ruff: noqa: E501 (texts of the scripts, as they stand there)
"""Faults and refactors, as textual edits of small scripts: see planted.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """`task` feels it; in `file` every `old` (which must be there once) becomes `new`. `modules`
    may be named, `phases` of the step, and `words` of which one stands in the sentence, where
    neither says enough. An empty `modules` means that any will do: the fault is in none."""

    name: str
    task: str
    file: str
    changes: tuple[tuple[str, str], ...]
    phases: tuple[str, ...] = ()
    modules: tuple[str | None, ...] = ()
    words: tuple[str, ...] = ()


def _one(name, task, file, old, new, phases=(), modules=(), words=()):
    return Edit(name, task, file, ((old, new),), phases, modules, words)


INIT, FORWARD, BACKWARD, UPDATE = ("initialisation",), ("forward",), ("backward",), ("update",)
DATA, LOSS, EVALUATION = ("data",), ("loss",), ("evaluation",)

FAULTS = (
    # --- weights at the start
    _one(
        "init-head-std",
        "rows",
        "loop.py",
        "normal_(self.head.weight, std=0.02)",
        "normal_(self.head.weight, std=0.5)",
        INIT,
        ("head",),
    ),
    _one(
        "init-all-std",
        "transformer",
        "char_transformer.py",
        "nn.init.normal_(weight, std=p.std)",
        "nn.init.normal_(weight, std=3 * p.std)",
        INIT,
        (),
        ("times", "deviation"),
    ),
    _one(
        "init-places",
        "vit",
        "vit.py",
        "0.5 * torch.randn(1, 16, width)",
        "5.0 * torch.randn(1, 16, width)",
        INIT,
        ("",),
    ),
    _one(
        "pool-one-place",
        "vit",
        "vit.py",
        "self.head(self.norm(x).mean(1))",
        "self.head(self.norm(x)[:, 0])",
        FORWARD,
        ("",),
    ),
    _one(
        "init-conv-zeros",
        "cnn",
        "loop.py",
        "        self.mix = nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs)",
        "        self.mix = nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs)\n"
        "        nn.init.zeros_(self.mix.weight)",
        INIT,
        ("stem.mix", "body.mix"),
    ),
    _one(
        "init-bias",
        "lstm",
        "char_lstm.py",
        "        self.head = nn.Linear(p.width, len(ALPHABET))",
        "        self.head = nn.Linear(p.width, len(ALPHABET))\n"
        "        nn.init.constant_(self.head.bias, 1.0)",
        INIT,
        ("head",),
    ),
    _one(
        "init-drawn-anew",
        "mlp",
        "mlp_digits.py",
        "def model():\n",
        "def model():\n    torch.rand(3)\n",
        INIT,
        (),
        ("random",),
    ),
    # --- what is computed
    _one(
        "residual-missing",
        "rows",
        "loop.py",
        "x = x + self.attention(self.norm1(x))",
        "x = self.attention(self.norm1(x))",
        FORWARD,
        ("layers.0",),
    ),
    _one(
        "residual-missing-conv",
        "mobilenet",
        "mobilenet_digits.py",
        "return x + self.body(x)",
        "return self.body(x)",
        FORWARD,
        ("2",),
    ),
    _one(
        "residual-missing-mlp",
        "transformer",
        "shared/transformer.py",
        "return x + self.dropout(self.mlp(self.norm2(x)))",
        "return self.dropout(self.mlp(self.norm2(x)))",
        FORWARD,
        ("blocks.0",),
    ),
    _one(
        "epsilon-layer-norm",
        "rows",
        "loop.py",
        "self.norm2 = nn.LayerNorm(width)\n        self.up",
        "self.norm2 = nn.LayerNorm(width, eps=1e-3)\n        self.up",
        FORWARD,
        ("layers.0.norm2",),
    ),
    _one(
        "epsilon-small",
        "transformer",
        "char_transformer.py",
        "self.norm = nn.LayerNorm(p.width)",
        "self.norm = nn.LayerNorm(p.width, eps=1e-6)",
        FORWARD,
        ("norm",),
    ),
    _one(
        "epsilon-batch-norm",
        "resnet",
        "resnet_digits.py",
        "self.norm2 = nn.BatchNorm2d(outputs)",
        "self.norm2 = nn.BatchNorm2d(outputs, eps=1e-2)",
        FORWARD,
        ("1.norm2",),
    ),
    _one(
        "batch-norm-momentum",
        "resnet",
        "resnet_digits.py",
        "nn.BatchNorm2d(4 * c),",
        "nn.BatchNorm2d(4 * c, momentum=0.9),",
        (*FORWARD, *UPDATE, *EVALUATION),
        ("4",),
    ),
    _one(
        "cast-half",
        "rows",
        "loop.py",
        "y = F.softmax(scores, dim=-1) @ v",
        "y = (F.softmax(scores.half(), dim=-1) @ v.half()).float()",
        FORWARD,
        ("layers.0.attention",),
    ),
    _one(
        "cast-bfloat",
        "mobilenet",
        "mobilenet_digits.py",
        "share = self.excite(F.relu(self.squeeze(x.mean((2, 3)))))",
        "share = self.excite(F.relu(self.squeeze(x.mean((2, 3)))).bfloat16().float())",
        FORWARD,
        ("2.body.6", "2.body.6.excite"),
    ),
    _one(
        "softmax-axis",
        "rows",
        "loop.py",
        "F.softmax(scores, dim=-1)",
        "F.softmax(scores, dim=-2)",
        FORWARD,
        ("layers.0.attention",),
    ),
    _one(
        "axis-swapped",
        "rows",
        "loop.py",
        "x = self.embed(x.squeeze(1)) + self.places",
        "x = self.embed(x.squeeze(1).transpose(1, 2)) + self.places",
        FORWARD,
        ("",),
    ),
    _one(
        "axes-of-heads",
        "transformer",
        "shared/transformer.py",
        "return y.transpose(1, 2).reshape(n, t, c // 3)",
        "return y.reshape(n, t, c // 3)",
        FORWARD,
        ("blocks.0",),
    ),
    _one(
        "mask-off-by-one",
        "rows",
        "loop.py",
        ".tril(0)",
        ".tril(1)",
        FORWARD,
        ("layers.0.attention",),
    ),
    _one(
        "mask-lost",
        "transformer",
        "shared/transformer.py",
        "q, k, v, is_causal=causal",
        "q, k, v",
        FORWARD,
        ("blocks.0",),
    ),
    _one(
        "scale-lost",
        "rows",
        "loop.py",
        "self.scale = (width // heads) ** -0.5",
        "self.scale = 1.0",
        FORWARD,
        ("layers.0.attention",),
    ),
    _one(
        "gelu-tanh",
        "transformer",
        "shared/transformer.py",
        "nn.GELU(), nn.Linear(hidden",
        'nn.GELU(approximate="tanh"), nn.Linear(hidden',
        FORWARD,
        ("blocks.0.mlp.1",),
    ),
    _one(
        "activation-class",
        "mlp",
        "mlp_digits.py",
        "        nn.GELU(),\n        nn.Dropout(p.dropout),\n        nn.Linear(p.width, 10)",
        "        nn.ReLU(),\n        nn.Dropout(p.dropout),\n        nn.Linear(p.width, 10)",
        FORWARD,
        ("5",),
    ),
    _one(
        "pool-border",
        "mobilenet",
        "mobilenet_digits.py",
        "count_include_pad=False",
        "count_include_pad=True",
        FORWARD,
        ("1",),
    ),
    _one(
        "dropout-added",
        "vit",
        "shared/transformer.py",
        "nn.Linear(width, hidden), nn.GELU(), nn.Linear",
        "nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear",
        FORWARD,
        ("blocks.0.mlp.2", "blocks.0.mlp"),
    ),
    _one(
        "dropout-rate",
        "mlp",
        "mlp_digits.py",
        "        nn.Dropout(p.dropout),\n        nn.Linear(p.width, p.width)",
        "        nn.Dropout(p.dropout + 0.2),\n        nn.Linear(p.width, p.width)",
        FORWARD,
        ("3",),
    ),
    _one(
        "infinity",
        "cnn",
        "loop.py",
        "x = self.drop(x.mean((2, 3)))",
        "x = self.drop((x / (x > 0).float()).nan_to_num(0.0, 1e30).mean((2, 3)))",
        FORWARD,
        ("",),
    ),
    _one(
        "spread-exp", "vae", "vae_digits.py", "F.softplus(spread)", "spread.exp()", FORWARD, ("",)
    ),
    _one(
        "depthwise-dense",
        "cnn",
        "loop.py",
        "x = F.relu(self.norm(self.conv(x)))",
        "x = self.norm(F.relu(self.conv(x)))",
        FORWARD,
        ("stem",),
    ),
    _one(
        "lstm-clamped",
        "lstm",
        "char_lstm.py",
        "return self.head(states)",
        "return self.head(states.clamp(-0.05, 0.05))",
        FORWARD,
        ("",),
    ),
    # --- the loss and the gradient
    _one(
        "smoothing",
        "resnet",
        "shared/digits.py",
        "        return F.cross_entropy(self.logits(model, images), labels, label_smoothing=self.smoothing)",
        "        return F.cross_entropy(self.logits(model, images), labels)",
        LOSS,
        (None,),
    ),
    _one(
        "loss-shifted",
        "lstm",
        "shared/text.py",
        "        return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())",
        "        return F.cross_entropy(logits.flatten(0, 1), characters[:, :-1].flatten())",
        LOSS,
        (None,),
    ),
    _one(
        "loss-of-sum",
        "vae",
        "vae_digits.py",
        'reduction="none").sum(-1)',
        'reduction="none").mean(-1)',
        LOSS,
        (None,),
    ),
    _one(
        "detached-stem",
        "cnn",
        "loop.py",
        "x = self.pool(self.stem(x))",
        "x = self.pool(self.stem(x)).detach()",
        (*BACKWARD, *FORWARD),
        ("", "pool", "stem"),
    ),
    _one(
        "detached-branch",
        "mobilenet",
        "mobilenet_digits.py",
        "return x * share.sigmoid()[:, :, None, None]",
        "return x * share.sigmoid().detach()[:, :, None, None]",
        BACKWARD,
        ("3.body.6", "3.body.6.excite"),
    ),
    _one(
        "detached-code",
        "vae",
        "vae_digits.py",
        "posterior.rsample()",
        "posterior.rsample().detach()",
        BACKWARD,
        ("encoder", "", "encoder.2", "decoder", None),
    ),
    _one(
        "frozen",
        "vit",
        "vit.py",
        "        self.patches = nn.Conv2d(1, width, 2, stride=2)",
        "        self.patches = nn.Conv2d(1, width, 2, stride=2).requires_grad_(False)",
        BACKWARD,
        ("patches",),
    ),
    _one(
        "not-cleared",
        "cnn",
        "loop.py",
        "        optimiser.zero_grad()\n",
        "",
        (*BACKWARD, *UPDATE),
        (),
        ("cleared",),
    ),
    _one(
        "clip-lost",
        "rows",
        "loop.py",
        "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "",
        (*BACKWARD, *UPDATE),
        (),
        ("clip", "scaled", "times"),
    ),
    _one(
        "clip-limit",
        "lstm",
        "char_lstm.py",
        "clip=p.clip)",
        "clip=p.clip / 10)",
        (*BACKWARD, *UPDATE),
        (),
        ("clip", "scaled", "times"),
    ),
    # --- the optimiser
    _one(
        "momentum-zero",
        "resnet",
        "resnet_digits.py",
        "momentum=0.9, weight_decay=5e-4",
        "momentum=0.0, weight_decay=5e-4",
        UPDATE,
        (),
        ("momentum",),
    ),
    _one(
        "momentum-lost",
        "cnn",
        "loop.py",
        '                speed.mul_(group["momentum"]).add_(weight.grad)',
        "                speed.copy_(weight.grad)",
        UPDATE,
        (),
        ("state", "optimiser"),
    ),
    _one(
        "optimiser-anew",
        "cnn",
        "loop.py",
        "    model.train()\n",
        "    model.train()\n    optimiser.state.clear()\n",
        UPDATE,
        (),
        ("state", "lost"),
    ),
    _one(
        "decay-on-norms",
        "transformer",
        "char_transformer.py",
        '[w for w in weights if w.dim() < 2], "weight_decay": 0.0}',
        '[w for w in weights if w.dim() < 2], "weight_decay": p.decay}',
        UPDATE,
        (),
        ("weight_decay",),
    ),
    _one(
        "adam-epsilon",
        "lstm",
        "char_lstm.py",
        "using(torch.optim.Adam, lr=p.lr)",
        "using(torch.optim.Adam, lr=p.lr, eps=1e-4)",
        UPDATE,
        (),
        ("eps",),
    ),
    _one(
        "adam-betas",
        "vae",
        "vae_digits.py",
        "using(torch.optim.Adam, lr=p.lr)",
        "using(torch.optim.Adam, lr=p.lr, betas=(0.9, 0.9))",
        UPDATE,
        (),
        ("betas",),
    ),
    _one(
        "adam-for-adamw",
        "vit",
        "vit_digits.py",
        "torch.optim.AdamW,",
        "torch.optim.Adam,",
        UPDATE,
        (),
        ("Adam",),
    ),
    _one(
        "head-not-trained",
        "rows",
        "loop.py",
        "Momentum(model.parameters(), lr=0.05)",
        'Momentum([w for n, w in model.named_parameters() if "head" not in n], lr=0.05)',
        UPDATE,
        (),
        ("given",),
    ),
    _one(
        "schedule-early",
        "cnn",
        "loop.py",
        "        optimiser.step()\n        schedule.step()\n",
        "        schedule.step()\n        optimiser.step()\n",
        UPDATE,
        (),
        ("schedule",),
    ),
    _one(
        "schedule-length",
        "mobilenet",
        "mobilenet_digits.py",
        "cosine(count_steps(p, digits.images))",
        "cosine(count_steps(p, digits.images) + 20)",
        UPDATE,
        (),
        ("lr",),
    ),
    # --- data
    _one(
        "data-in-order",
        "mlp",
        "mlp_digits.py",
        "data = batches(p, digits.images, digits.labels, passes=p.passes)",
        "def data():\n    for _ in range(p.passes):\n        yield from zip(digits.images.split(p.batch), digits.labels.split(p.batch))",
        DATA,
        (),
        ("order",),
    ),
    _one(
        "data-sorted",
        "cnn",
        "loop.py",
        "order = torch.randperm(len(images))",
        "order = torch.randperm(len(images)).flip(0)",
        DATA,
        (),
        ("order",),
    ),
    _one(
        "data-scaled",
        "resnet",
        "shared/digits.py",
        "table[:, :64].view(-1, 1, 8, 8) / 16",
        "table[:, :64].view(-1, 1, 8, 8) / 255",
        DATA,
        (),
        ("times", "scaled"),
    ),
    _one(
        "data-flipped",
        "cnn",
        "loop.py",
        "yield images[rows], labels[rows]",
        "yield images[rows].flip(-1), labels[rows]",
        DATA,
        (),
        ("axis", "flip"),
    ),
    _one(
        "label-noise",
        "mlp",
        "shared/digits.py",
        "    return images[~held_out]",
        "    labels = torch.where(torch.arange(len(labels)) % 20 == 1, (labels + 3) % 10, labels)\n"
        "    return images[~held_out]",
        (*LOSS, *DATA),
        (),
        ("labels",),
    ),
    _one(
        "label-noise-loop",
        "rows",
        "loop.py",
        "images, labels = images[:960], labels[:960]",
        "images, labels = images[:960], labels[:960]\nlabels[::20] = 0",
        (*LOSS, *DATA),
        (),
        ("labels",),
    ),
    # --- evaluation
    _one(
        "dropout-left-on",
        "cnn",
        "loop.py",
        "    model.eval()\n",
        "",
        EVALUATION,
        (),
        ("training mode",),
    ),
    _one(
        "dropout-left-on-mlp",
        "mlp",
        "shared/digits.py",
        "        logits, labels = self.logits(model, self.val_images), self.val_labels",
        "        model.train()\n        logits, labels = self.logits(model, self.val_images), self.val_labels",
        EVALUATION,
        (),
        ("training mode",),
    ),
    _one(
        "metric-of-half",
        "rows",
        "loop.py",
        "right = (logits.argmax(1) == val_labels).float().mean()",
        "right = (logits.argmax(1) == val_labels).float()[:90].mean()",
        ("evaluation", "report"),
        (),
    ),
)

# Nothing that matters changes.
REFACTORS = (
    Edit(
        "rename-class",
        "rows",
        "loop.py",
        (
            ("class Layer(nn.Module):", "class Block(nn.Module):\n    # a layer\n"),
            ("[Layer(width, 4), Layer(width, 4)]", "[Block(width, 4), Block(width, 4)]"),
        ),
    ),
    Edit(
        "rename-modules",
        "cnn",
        "loop.py",
        (
            ("self.stem = Stage(1, 8)", "self.first = Stage(1, 8)"),
            ("self.pool(self.stem(x))", "self.pool(self.first(x))"),
        ),
    ),
    Edit(
        "rename-deep",
        "rows",
        "loop.py",
        (
            ("self.attention = Attention", "self.mixer = Attention"),
            ("self.attention(self.norm1(x))", "self.mixer(self.norm1(x))"),
        ),
    ),
    Edit(
        "rename-body",
        "mobilenet",
        "mobilenet_digits.py",
        (
            ("self.body = nn.Sequential(", "self.inner = nn.Sequential("),
            ("return x + self.body(x)", "return x + self.inner(x)"),
        ),
    ),
    _one(
        "comments", "mlp", "mlp_digits.py", "def model():", "# two hidden layers\n\n\ndef model():"
    ),
    _one(
        "docstring",
        "lstm",
        "char_lstm.py",
        "    def forward(self, x):\n",
        '    def forward(self, x):\n        """(n, t) -> (n, t, letters)"""\n',
    ),
    Edit(
        "split-function",
        "cnn",
        "loop.py",
        (
            (
                "    def forward(self, x):\n        x = self.pool(self.stem(x))\n        x = self.body(x)\n",
                (
                    "    def features(self, x):\n        return self.body(self.pool(self.stem(x)))\n\n"
                    "    def forward(self, x):\n        x = self.features(x)\n"
                ),
            ),
        ),
    ),
    Edit(
        "two-lines",
        "transformer",
        "shared/transformer.py",
        (
            (
                "    return y.transpose(1, 2).reshape(n, t, c // 3)\n",
                "    y = y.transpose(1, 2)\n    return y.reshape(n, t, c // 3)\n",
            ),
        ),
    ),
    Edit(
        "independent-order",
        "vit",
        "shared/transformer.py",
        (
            (
                "        self.norm1 = nn.LayerNorm(width)\n        self.qkv = nn.Linear(width, 3 * width)\n",
                "        self.qkv = nn.Linear(width, 3 * width)\n        self.norm1 = nn.LayerNorm(width)\n",
            ),
        ),
    ),
    Edit(
        "wrapped",
        "mlp",
        "mlp_digits.py",
        (
            (
                "    return nn.Sequential(\n        nn.Flatten(),",
                "    layers = (\n        nn.Flatten(),",
            ),
            (
                "        nn.Linear(p.width, 10),\n    )",
                "        nn.Linear(p.width, 10),\n    )\n    return nn.Sequential(*layers)",
            ),
        ),
    ),
    Edit(
        "keyword",
        "resnet",
        "resnet_digits.py",
        (
            (
                "nn.Conv2d(inputs, outputs, 1, stride, bias=False)",
                "nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)",
            ),
        ),
    ),
    Edit(
        "functional",
        "resnet",
        "resnet_digits.py",
        (("        y = F.relu(self.norm1(x))\n", "        y = self.norm1(x).relu()\n"),),
    ),
    Edit(
        "moved-file",
        "vit",
        "shared/transformer.py",
        (
            (
                "class Block(nn.Module):",
                "class Piece(nn.Module):\n    pass\n\n\nclass Block(nn.Module):",
            ),
        ),
    ),
    Edit(
        "sum-order",
        "resnet",
        "resnet_digits.py",
        (
            (
                "        return self.conv2(F.relu(self.norm2(self.conv1(y)))) + self.shortcut(y)\n",
                "        return self.shortcut(y) + self.conv2(F.relu(self.norm2(self.conv1(y))))\n",
            ),
        ),
    ),
    Edit(
        "mean-as-sum",
        "cnn",
        "loop.py",
        (
            (
                "x = self.drop(x.mean((2, 3)))",
                "x = self.drop(x.sum((2, 3)) / (x.shape[2] * x.shape[3]))",
            ),
        ),
    ),
    Edit(
        "mean-in-two",
        "mobilenet",
        "mobilenet_digits.py",
        (("x.mean((2, 3))", "x.mean(3).mean(2)"),),
    ),
    Edit(
        "scale-folded",
        "rows",
        "loop.py",
        (
            (
                "scores = q @ k.transpose(-2, -1) * self.scale",
                "scores = (q * self.scale) @ k.transpose(-2, -1)",
            ),
        ),
    ),
    Edit(
        "attention-by-hand",
        "vit",
        "shared/transformer.py",
        (
            (
                "    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)\n",
                "    y = F.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1) @ v\n",
            ),
        ),
    ),
    Edit(
        "loss-by-hand",
        "lstm",
        "shared/text.py",
        (
            (
                "        return F.cross_entropy(logits.flatten(0, 1), characters[:, 1:].flatten())",
                (
                    "        logs = F.log_softmax(logits.flatten(0, 1), dim=1)\n"
                    "        return F.nll_loss(logs, characters[:, 1:].flatten())"
                ),
            ),
        ),
    ),
    Edit(
        "groups-split",
        "transformer",
        "char_transformer.py",
        (
            (
                '        {"params": [w for w in weights if w.dim() < 2], "weight_decay": 0.0},',
                '        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},',
            ),
        ),
    ),
)
