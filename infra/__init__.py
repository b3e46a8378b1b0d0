"""The deployed side as CDK constructs; `infra.stack` is the table of contents."""

from .node_runtime import use_packaged_node

use_packaged_node()  # jsii starts node when aws_cdk is first imported: before any module of this package
