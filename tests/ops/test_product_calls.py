"""Products and windows as PyTorch has them: what a call gives, or the type of what it raises."""

from __future__ import annotations

from typing import Any

import pytest
from backend import kiln, torch
from calls import outcome, shown

CALLS = """
k.dot(k.ones(1),k.ones(0))
k.dot(k.ones(0),k.ones(0))
k.einsum('i->',k.tensor([100,100],dtype=k.int8))
k.einsum('ij->i',k.tensor([[True,True],[False,True]]))
k.einsum('ii',k.full((2,2),200,dtype=k.uint8))
k.einsum('ij->j',k.ones(2,3,dtype=k.float16))
k.einsum('ij,jk->ik',k.full((2,2),100,dtype=k.int8),k.full((2,2),2,dtype=k.int8))
k.linalg.vecdot(k.arange(3),k.arange(3))
k.linalg.vecdot(k.ones(3),k.ones(3).double())
F.linear(k.ones(4,2,dtype=k.bfloat16),k.ones(3,2,dtype=k.bfloat16),k.ones(3))
F.linear(k.ones(4,3),k.ones(1,3),k.ones(2))
F.linear(k.ones(2,3),k.ones(3),k.tensor(1.))
F.linear(k.ones(2,3),k.ones(3))
F.linear(k.ones(2,3),k.ones(2,4,3))
F.linear(k.ones(3),k.ones(2,4,3))
F.linear(k.ones(3),k.ones(2,3),k.ones(4,2))
F.linear(k.ones(3),k.ones(4,3),k.arange(4.).reshape(1,4))
F.linear(k.ones(3),k.ones(4,3),k.tensor(1.))
F.linear(k.ones(5,2,3),k.ones(4,3),k.ones(2))
F.linear(k.ones(5,2,3),k.ones(4,3),k.ones(1))
F.linear(k.ones(5,3),k.ones(4,3),k.arange(20.).reshape(5,4))
F.linear(k.ones(2,5,3),k.ones(4,3),k.arange(20.).reshape(5,4))
F.linear(k.ones(2,5,3),k.ones(4,3),k.arange(40.).reshape(2,5,4))
F.linear(k.ones(2,5,3),k.ones(4,3),k.arange(40.).reshape(1,2,5,4))
F.interpolate(k.arange(3.).reshape(1,1,1,3),scale_factor=(1,1.25),mode='bilinear')
F.interpolate(k.arange(3.).reshape(1,1,1,3),scale_factor=(1,1.25),mode='nearest')
F.interpolate(k.arange(3.).reshape(1,1,1,3),scale_factor=(1,1.25),mode='nearest-exact')
F.interpolate(k.arange(3.).reshape(1,1,1,3),scale_factor=(1,2.3),mode='nearest')
F.interpolate(k.arange(3.).reshape(1,1,3),scale_factor=1.25,mode='linear')
F.interpolate(k.arange(3.).reshape(1,1,3),scale_factor=1.25)
F.interpolate(k.arange(3.).reshape(1,1,3),scale_factor=2.3)
F.interpolate(k.arange(3.).reshape(1,1,3,1,1),scale_factor=(1.25,1,1))
F.interpolate(k.arange(3.).reshape(1,1,3,1,1),scale_factor=(1.25,1,1),mode='trilinear')
(lambda x: F.interpolate(x,size=3,mode='linear') is x)(k.arange(3.).reshape(1,1,3))
k.autograd.grad(F.interpolate((x:=k.ones(1,1,2,3,requires_grad=True)),scale_factor=1.25,mode='bilinear').sum(),x)
k.autograd.grad(F.lp_pool1d((x:=k.tensor([[[0.,0.,3.,4.]]],requires_grad=True)),2,2).sum(),x)
k.autograd.grad(F.lp_pool1d((x:=k.tensor([[[0.,0.,3.,4.]]],requires_grad=True)),1,2).sum(),x)
k.autograd.grad(F.lp_pool2d((x:=k.tensor([[[0.,0.,3.,4.]]*2],requires_grad=True)),3,2).sum(),x)
F.lp_pool1d(k.tensor([[[-3.,1.,3.,4.]]]),1,2)
F.max_pool2d(k.ones(1,1,5,5),2,1,2,3)
F.max_pool1d(k.ones(1,1,5),2,1,2,3)
F.max_pool2d(k.ones(1,1,5,5),3,1,1,2).shape
F.avg_pool3d(k.ones(1,1,2,2,2),3,1,1)
F.avg_pool2d(k.ones(1,1,2,2),3,1,1)
F.scaled_dot_product_attention(*[k.ones(1,2,2)]*3,k.zeros(2,2),is_causal=True)
F.scaled_dot_product_attention(*[k.ones(1,1,2,2)]*3,k.zeros(2,2),is_causal=True)
F.scaled_dot_product_attention(k.ones(2,2),k.ones(3,2),k.arange(6.).reshape(3,2),k.tensor([0.,1.,2.]))
F.scaled_dot_product_attention(k.ones(2,2),k.ones(3,2),k.arange(6.).reshape(3,2),k.tensor([True,False,True]))
F.scaled_dot_product_attention(*[k.ones(1,1,3,2)]*3,k.zeros(3))
F.scaled_dot_product_attention(k.ones(1,6,1,1),k.ones(1,2,2,1),k.arange(6.).reshape(1,3,2,1),enable_gqa=True)
F.scaled_dot_product_attention(k.ones(1,4,1,1),k.arange(4.).reshape(1,2,2,1),k.ones(1,4,2,1),enable_gqa=True)
F.scaled_dot_product_attention(k.ones(1,4,1,1),k.ones(1,3,2,1),k.ones(1,4,2,1),enable_gqa=True)
k.nn.MultiheadAttention(4,2)(*[k.ones(3,0,4)]*3,key_padding_mask=k.zeros(0,3)>0)[0].shape
k.nn.MultiheadAttention(4,2)(*[k.ones(3,0,4)]*3,attn_mask=k.zeros(0,3,3))[0].shape
""".split("\n")[1:-1]


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str, answers: Any) -> None:
    """The same results and types of exceptions as PyTorch's."""
    assert repr(outcome(call, kiln)) == repr(answers([call, outcome, shown], lambda: outcome(call, torch)))
